"""fairseq's `linformer_roberta` (examples/linformer), the code of the paper's authors.

It compresses before W_k and W_v, whose biases it adds afterwards: (E X) W_k + b_k. Here the order
is E (X W_k + b_k). Without these two biases the order does not matter, and they are not needed: b_k
adds the same to all scores of a query, which the softmax ignores, and b_v adds W_o b_v to the
output, because the weights of a query sum to 1. So b_k becomes zero, and b_v a part of W_o's bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import UserError
from ...models import LinformerForMaskedLM
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
# What a model must be to be expressed there.
ALLOWED = {
    "activation": tuple(ACTIVATIONS.values()),
    "sharing": ("headwise", "kv", "layerwise"),
    "lm_transform": (True,),
}


def from_fairseq(source: common.Source, *, heads: int | None = None, prefix: str = "") -> Any:
    """A checkpoint {"model": tensors, "args" or "cfg": options}, or its tensors, as our model.

    A LinformerForMaskedLM, or without a language-model head a LinformerModel.

    `heads` is their encoder_attention_heads, needed if the checkpoint has no options. `prefix` is
    of all names, if they have one.
    """
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
    depth = tensors.count(STACK + "layers.{}.fc1.weight")
    result = tensors.take_table(TOKENS | LAYER, layers=depth)
    normed = STACK + "layernorm_embedding.weight" in tensors
    final = STACK + "layer_norm.weight" in tensors
    result |= tensors.take_table(EMBEDDING_NORM) if normed else {}
    result |= tensors.take_table(FINAL_NORM) if final else {}
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
    tensors.check_all_read(UNUSED)
    values |= common.COMMON | {
        "vocab_size": words,
        "hidden_size": dim,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": len(result["encoder.layers.0.feed_forward.w_1.bias"]),
        "hidden_act": ACTIVATIONS[activation],
        "norm": "pre" if final else "post",
        "embedding_norm": normed,
        "pad_token_id": max(0, first - 1),
        "tie_word_embeddings": lm
        and torch.equal(result["lm_head.weight"], result["embeddings.embed_tokens.weight"]),
    }
    return common.built("masked_lm" if lm else "model", values, result)


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


def to_fairseq(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options of `linformer_roberta`, and its state dict, with the outputs of a model of ours.

    Of LinformerForMaskedLM with learned positions; what fairseq cannot express is refused.
    """
    if not isinstance(model, LinformerForMaskedLM):
        raise UserError(
            f"only LinformerForMaskedLM can be expressed in {PACKAGE}: got {type(model).__name__}."
        )
    config: Any = model.config
    pre = config.norm == "pre"
    has_query_bias = config.bias if config.qkv_bias is None else config.qkv_bias
    zero = ("k", "v") if has_query_bias else ("q", "k", "v")  # the sides without a bias
    ends = tuple(f"{side}_proj.*" for side in zero)
    biases = {a: b for a, b in LAYER.items() if a.endswith(ends)}
    weights = {a[:-1] + "weight": b[:-1] + "weight" for a, b in biases.items()}
    table = {a: b for a, b in LAYER.items() if a not in biases} | weights
    words = TOKENS | LM | (FINAL_NORM if pre and config.final_norm else {})
    words |= EMBEDDING_NORM if config.norms_embeddings else {}
    s, tensors, matrices = common.given_back(model, table, words, ALLOWED, package=PACKAGE)
    ratio = s["max_length"] // s["k"][0]
    allowed = {
        "final_norm": (pre,),
        "num_kv_heads": (s["num_heads"],),
        "head_dim": (s["dim"] // s["num_heads"],),
        "k": ([s["max_length"] // ratio] * s["depth"],),
    }
    common.check_settings(s, allowed, package=PACKAGE)
    for i, (matrix, _) in enumerate(matrices):
        for number, side in enumerate("kv"):
            tensors[MATRIX.format(i=i, side=side)] = matrix[number, 0]
        for side in zero:
            tensors[f"{STACK}layers.{i}.self_attn.{side}_proj.bias"] = torch.zeros(s["dim"])
        tensors[f"{STACK}layers.{i}.version"] = torch.tensor(2)
    tensors["encoder.version"] = torch.tensor(2)
    positions = model.state_dict()["linformer.embeddings.positions.weight"]
    padding = 1 if config.pad_token_id is None else config.pad_token_id
    tensors[POSITIONS] = torch.cat([positions.new_zeros(padding + 1, s["dim"]), positions])
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    arguments = {
        "encoder_layers": s["depth"],
        "encoder_embed_dim": s["dim"],
        "encoder_ffn_embed_dim": s["ff_dim"],
        "encoder_attention_heads": s["num_heads"],
        "activation_fn": activations[s["activation"]],
        "encoder_normalize_before": pre,
        "layernorm_embedding": config.norms_embeddings,
        "untie_weights_roberta": not config.tie_word_embeddings,
        "max_positions": s["max_length"],
        "compressed": ratio,
        "shared_kv_compressed": 0,
        "shared_layer_kv_compressed": 0,
    }
    return arguments, {name: tensor.clone() for name, tensor in tensors.items()}
