"""fairseq's `linformer_roberta` (examples/linformer), the code of the paper's authors.

It compresses before W_k and W_v, whose biases it adds afterwards: (E X) W_k + b_k. Here the order is
E (X W_k + b_k). The same outputs without these two biases: b_k adds the same to all scores of a
query, which the softmax ignores, and b_v adds W_o b_v to the output, because the weights of a query
sum to 1. So b_k becomes zero, and b_v moves into the bias of W_o.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..family import expand
from . import checkpoint as common

if TYPE_CHECKING:
    from ..family import Table

PACKAGE = "fairseq"
STACK = "encoder.sentence_encoder."
# Names of older versions -> of the last one.
RENAMED = {"decoder.": "encoder.", STACK + "emb_layer_norm.": STACK + "layernorm_embedding."}
TOKENS: Table = {"embeddings.embed_tokens.weight": STACK + "embed_tokens.weight"}
POSITIONS = STACK + "embed_positions.weight"
EMBEDDING_NORM: Table = {"embeddings.norm.*": STACK + "layernorm_embedding.*"}
FINAL_NORM: Table = {"encoder.final_norm.*": STACK + "layer_norm.*"}  # with pre-norm only
LAYER: Table = {
    "encoder.layers.{i}.attention.q_proj.*": STACK + "layers.{i}.self_attn.q_proj.*",
    "encoder.layers.{i}.attention.k_proj.*": STACK + "layers.{i}.self_attn.k_proj.*",
    "encoder.layers.{i}.attention.v_proj.*": STACK + "layers.{i}.self_attn.v_proj.*",
    "encoder.layers.{i}.attention.out_proj.*": STACK + "layers.{i}.self_attn.out_proj.*",
    "encoder.layers.{i}.attention_norm.*": STACK + "layers.{i}.self_attn_layer_norm.*",
    "encoder.layers.{i}.feed_forward.w_1.*": STACK + "layers.{i}.fc1.*",
    "encoder.layers.{i}.feed_forward.w_2.*": STACK + "layers.{i}.fc2.*",
    "encoder.layers.{i}.feed_forward_norm.*": STACK + "layers.{i}.final_layer_norm.*",
}
LM: Table = {
    "lm_head.*": "encoder.lm_head.*",
    "transform.dense.*": "encoder.lm_head.dense.*",
    "transform.norm.*": "encoder.lm_head.layer_norm.*",
}
MATRIX = STACK + "layers.{i}.self_attn.compress_{side}.weight"
# Without effect: versions, and the bias of a shared E, of which only the weight is used.
UNUSED = (
    "version",
    "compress_k.bias",
    "compress_v.bias",
    "compress_layer.weight",
    "compress_layer.bias",
)
ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh"}
# What an encoder must be to be expressed there.
ALLOWED = {
    "norm_eps": (1e-5,),
    "bias": (True,),
    "neighbours": (0,),
    "projection": ("linear", "fixed"),
    "window": (0,),
    "global_tokens": (0,),
    "activation": tuple(ACTIVATIONS.values()),
}


def from_fairseq(source: common.Source, *, heads: int | None = None, prefix: str = "") -> Any:
    """A checkpoint {"model": tensors, "args" or "cfg": options}, or its tensors, as our model.

    A LinformerForMaskedLM, or without a language-model head a LinformerModel.

    Args:
        heads: `encoder_attention_heads`, needed if the checkpoint has no options.
        prefix: of all names, if they have one.

    """
    return converted(source, heads=heads, prefix=prefix).module()


def converted(
    source: common.Source, *, heads: int | None = None, prefix: str = ""
) -> common.Converted:
    options = _options(source)
    heads = options.get("encoder_attention_heads") if heads is None else heads
    activation = options.get("activation_fn", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"the activation of {PACKAGE} must be {', '.join(ACTIVATIONS)}: got "
            f"activation_fn={activation!r}."
        )
    tensors = common.Checkpoint(source, package=PACKAGE, prefix=prefix)
    tensors.rename(RENAMED)
    if any(name.startswith("classification_heads.") for name in tensors.unread):
        raise UserError(
            "classification heads of fairseq are not converted: got classification_heads. Remove "
            "these tensors, and fine-tune the converted model."
        )
    depth = max(1, tensors.count(STACK + "layers.{}.fc1.weight"))
    result = tensors.take_table(TOKENS | LAYER, layers=depth)
    normed, final = (next(iter(expand(t, 1).values())) for t in (EMBEDDING_NORM, FINAL_NORM))
    result |= tensors.take_table(EMBEDDING_NORM) if normed in tensors else {}
    result |= tensors.take_table(FINAL_NORM) if final in tensors else {}
    _move_biases(result, depth)
    matrices = [_matrix(tensors, i) for i in range(depth)]
    values, weights = common.projection_values(matrices)
    result |= weights
    table = tensors.take(POSITIONS)
    first = len(table) - values["max_position_embeddings"]
    if first < 0:
        raise UserError(
            f"{POSITIONS} must have a row for each of the {values['max_position_embeddings']} "
            f"positions of compress_k: got {len(table)} rows."
        )
    result["embeddings.positions.weight"] = table[first:]
    words, dim = result["embeddings.embed_tokens.weight"].shape
    if heads is None or heads < 1 or dim % heads:
        raise UserError(
            f"heads must be a divisor of {dim}, the width of the checkpoint: got {heads}. Pass the "
            "encoder_attention_heads of the model."
        )
    lm = "encoder.lm_head.bias" in tensors
    if lm:
        result |= tensors.take_table(LM)
    tensors.ignore(*UNUSED)
    tensors.check_all_read()
    values |= common.COMMON | {
        "vocab_size": words,
        "hidden_size": dim,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": len(result["encoder.layers.0.feed_forward.w_1.bias"]),
        "hidden_act": ACTIVATIONS[activation],
        "norm": "pre" if final in tensors else "post",
        "embedding_norm": normed in tensors,
        "projection": "linear",
        "position_embedding_type": "learned",
        "pad_token_id": max(0, first - 1),
        "tie_word_embeddings": lm
        and torch.equal(result["lm_head.weight"], result["embeddings.embed_tokens.weight"]),
    }
    return common.Converted(kind="masked_lm" if lm else "model", values=values, tensors=result)


def _options(source: common.Source) -> dict[str, Any]:
    """The options in a checkpoint: its `args`, or the model's part of its `cfg`."""
    if not isinstance(source, Mapping):
        return {}
    found = source.get("args")
    config = source.get("cfg")
    if found is None and isinstance(config, Mapping):
        found = config.get("model")
    return dict(found) if isinstance(found, Mapping) else dict(vars(found)) if found else {}


def _matrix(tensors: common.Checkpoint, layer: int) -> Tensor:
    """E and F of one layer (2, 1, K, N)."""
    key, value = (MATRIX.format(i=layer, side=side) for side in "kv")
    sides = [tensors.take(key), tensors.take(value if value in tensors else key)]
    return torch.stack(sides)[:, None]


def _move_biases(result: dict[str, Tensor], depth: int) -> None:
    """b_k has no effect; b_v becomes a part of the bias of W_o."""
    for i in range(depth):
        name = f"encoder.layers.{i}.attention."
        value, out = result[f"{name}v_proj.bias"], result[f"{name}out_proj.weight"]
        moved = out.double() @ value.double() + result[f"{name}out_proj.bias"].double()
        result[f"{name}out_proj.bias"] = moved.to(out.dtype)
        for side in ("k_proj", "v_proj"):
            result[f"{name}{side}.bias"] = torch.zeros_like(value)


def to_fairseq(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options of `linformer_roberta`, and its state dict, with the outputs of a model of ours.

    A LinformerForMaskedLM with learned positions; what fairseq cannot express is refused.
    """
    lm, encoder = common.encoder_of(model)
    if not lm:
        raise UserError(f"only LinformerForMaskedLM can be given back: got {type(model).__name__}.")
    config: Any = model.config
    settings = common.settings_of(encoder) | {
        "positions": config.positions,
        "type_vocab_size": config.type_vocab_size,
        "embedding_size": config.embedding_size,
        "lm_transform": config.lm_transform,
    }
    heads, depth, length = settings["num_heads"], settings["depth"], settings["max_length"]
    ratio = length // max(1, settings["k"][0] or 1)
    pre = settings["norm"] == "pre"
    allowed = ALLOWED | {
        "positions": ("learned",),
        "type_vocab_size": (0,),
        "embedding_size": (None,),
        "lm_transform": (True,),
        "final_norm": (pre,),
        "num_kv_heads": (heads,),
        "head_dim": (settings["dim"] // heads,),
        "k": ([length // ratio] * depth,),
    }
    common.check_settings(settings, allowed, package=PACKAGE)
    matrices, biases = common.matrices_of(encoder, heads=1)
    common.check_zero("bias of E", biases, package=PACKAGE)
    own = {name.removeprefix("linformer."): t for name, t in model.state_dict().items()}
    table = TOKENS | LAYER | LM | (FINAL_NORM if pre else {})
    table |= EMBEDDING_NORM if config.norms_embeddings else {}
    tensors: dict[str, Tensor] = {}
    for ours, theirs in expand(table, depth).items():
        if ours.endswith(("k_proj.bias", "v_proj.bias")):
            common.check_zero(f"{ours}, added before E,", [own.get(ours)], package=PACKAGE)
        zeros = torch.zeros(settings["dim"])
        tensors[theirs] = own.get(ours, zeros) if "_proj.bias" in ours else own[ours]
    for i, matrix in enumerate(matrices):
        for number, side in enumerate("kv"):
            tensors[MATRIX.format(i=i, side=side)] = matrix[number, 0]
        tensors[f"{STACK}layers.{i}.version"] = torch.tensor(2)
    tensors["encoder.version"] = torch.tensor(2)
    table_of_ours = own["embeddings.positions.weight"]
    padding = 1 if config.pad_token_id is None else config.pad_token_id
    first_rows = table_of_ours.new_zeros(padding + 1, settings["dim"])
    tensors[POSITIONS] = torch.cat([first_rows, table_of_ours])
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    arguments = {
        "encoder_layers": depth,
        "encoder_embed_dim": settings["dim"],
        "encoder_ffn_embed_dim": settings["ff_dim"],
        "encoder_attention_heads": heads,
        "activation_fn": activations[settings["activation"]],
        "encoder_normalize_before": pre,
        "layernorm_embedding": config.norms_embeddings,
        "untie_weights_roberta": not config.tie_word_embeddings,
        "max_positions": length,
        "compressed": ratio,
        "shared_kv_compressed": 0,
        "shared_layer_kv_compressed": 0,
    }
    return arguments, {name: tensor.detach().clone() for name, tensor in tensors.items()}
