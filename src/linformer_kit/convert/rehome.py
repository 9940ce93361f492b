"""A pretrained encoder as a Linformer of `linformer_kit.models`: its weights, another attention.

Families whose architecture the models here can express are re-homed: the result is a checkpoint of
LinformerConfig, which transformers loads after `import linformer_kit.models`. The tables in
`families/` say which tensor is which.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .. import models
from ..models.text_input import longest
from .families import FAMILIES
from .family import Family, Head, expand
from .positions import Extension, extend_positions
from .segment_means import default_sharing, start_from_segment_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

POSITIONS = "embeddings.positions.weight"
# Their names of activations -> ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
COPIED = ("pad_token_id", "bos_token_id", "eos_token_id", "problem_type")


def convert(
    model: PreTrainedModel,
    *,
    max_length: int | None = None,
    k: int | Sequence[int] = 128,
    window: int = 64,
    global_tokens: int = 1,
    projection: str = "mean",
    sharing: str | None = None,
    full_layers: Sequence[int] = (),
    positions: Extension = "copy",
    **options: Any,
) -> models.LinformerModel | Any:
    """The Linformer with the weights of a pretrained BERT-like model; nothing is trained.

    Args:
        model: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA or ALBERT, without a head
            or with one for masked language modelling, classification of sequences or tokens,
            multiple choice or question answering.
        max_length: how many tokens the result reads; by default as many as the model.
        k: the number of compressed rows, see `LinformerEncoder`; a sequence for each layer.
        window: how many positions on each side are seen exactly.
        global_tokens: how many first positions see, and are seen by, all exactly.
        projection: segment means (`mean`) need no training; a learned E starts as them. `pool` is
            set from data by `calibrate`, and by `distill`.
        sharing: of a learned E; by default none for pool, kv for the others.
        full_layers: layers that keep full attention.
        positions: how the position table is extended, see `extend_positions`.
        options: further fields of LinformerConfig.

    Tensors that have no place in the result are listed in a warning.

    """
    family = family_of(model)
    head = head_of(family, model)
    theirs = _tensors_of(model)
    config = models.LinformerConfig(
        **config_values(family, head, model)
        | {
            "max_position_embeddings": longest(model.config) if max_length is None else max_length,
            "k": list(k) if not isinstance(k, int) else k,
            "window": window,
            "global_tokens": global_tokens,
            "projection": projection,
            "sharing": default_sharing(projection) if sharing is None else sharing,
            "full_layers": sorted(full_layers) or None,
        }
        | options
    )
    student = (models.LinformerModel if head is None else getattr(models, head.ours))(config)
    table = tensor_table(family, head, student)
    _check_present(model, theirs, set(table.values()))
    own = student.state_dict()
    tensors = {}
    for ours, name in table.items():
        tensor = theirs[name]
        if ours.endswith(POSITIONS):
            tensor = extend_positions(
                tensor[family.first_position :], config.max_position_embeddings, positions
            )
        tensors[ours] = tensor.to(own[ours].dtype)
    student.load_state_dict(own | tensors)
    student.tie_weights()
    start_from_segment_means(student)
    _tell_unused(model, theirs, set(table.values()), family)
    student.train(model.training)
    return student


def family_of(model: PreTrainedModel) -> Family:
    """The family of a model, or an error that names what was found and what is supported."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in FAMILIES:
        raise ValueError(
            f"convert knows {', '.join(FAMILIES)}: got {type(model).__name__} with model_type "
            f"{kind!r}. `linformerize` exchanges the attention inside other models."
        )
    family = FAMILIES[kind]
    for name, value in family.required.items():
        found = getattr(model.config, name, value)
        if found != value:
            raise ValueError(
                f"only {kind} models with {name}={value!r} can be converted: got {name}={found!r}."
            )
    return family


def head_of(family: Family, model: PreTrainedModel) -> Head | None:
    """The head of a model's class; None for an encoder without one."""
    name = type(model).__name__
    for end, head in family.heads.items():
        if name.endswith(end):
            return head
    if name.endswith("Model"):
        return None
    known = ", ".join(("Model", *family.heads))
    raise ValueError(
        f"of this family the classes ending in {known} can be converted: got {name}. Convert its "
        "encoder, for example with AutoModel."
    )


def config_values(family: Family, head: Head | None, model: PreTrainedModel) -> dict[str, Any]:
    """The fields of LinformerConfig that follow from a pretrained model."""
    theirs: Any = model.config
    activation = getattr(theirs, "hidden_act", getattr(theirs, "activation", "gelu"))
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"the activation must be one of {', '.join(ACTIVATIONS)}: got {activation!r}."
        )
    values = {ours: getattr(theirs, name) for ours, name in family.sizes.items()}
    values |= {name: getattr(theirs, name, None) for name in COPIED}
    names = set(model.state_dict())
    prefix = family.prefix if head is not None else ""
    mapped = expand(family.tensors, 1).get("embeddings.to_hidden.weight")
    if mapped is None or prefix + mapped not in names:
        values["embedding_size"] = None
    values |= {
        "hidden_act": ACTIVATIONS[activation],
        "norm": "post",
        "pooling": "cls",
        "tie_word_embeddings": bool(getattr(theirs, "tie_word_embeddings", True)),
        "pooler": head is None
        and bool(family.pooler)
        and getattr(model, "pooler", None) is not None,
    }
    if head is not None and "lm_head.*" in head.tensors:
        values["lm_act"] = ACTIVATIONS[activation]
    elif head is not None and theirs.num_labels:
        values |= {"id2label": dict(theirs.id2label), "label2id": dict(theirs.label2id)}
    return values | dict(family.options) | dict(head.options if head is not None else {})


def tensor_table(family: Family, head: Head | None, student: Any) -> dict[str, str]:
    """Our name -> theirs, of every tensor that is copied."""
    layers: int = student.config.num_hidden_layers
    encoder = family.tensors | (family.pooler if student.config.pooler else {})
    ours, theirs = ("linformer.", family.prefix) if head is not None else ("", "")
    table = {ours + a: theirs + b for a, b in expand(encoder, layers).items()}
    if head is not None:
        table |= expand(head.tensors, layers)
    present = student.state_dict()
    return {name: other for name, other in table.items() if name in present}


def to_pretrained(student: torch.nn.Module, model: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors of a converted model under the names of the pretrained one, for the way back.

    Only the positions that the pretrained model has are returned.
    """
    family = family_of(model)
    table = tensor_table(family, head_of(family, model), student)
    own, theirs = student.state_dict(), dict(model.state_dict())
    for ours, name in table.items():
        tensor = own[ours]
        if ours.endswith(POSITIONS):
            rows = min(len(tensor), len(theirs[name]) - family.first_position)
            kept = theirs[name].clone()
            kept[family.first_position : family.first_position + rows] = tensor[:rows]
            tensor = kept
        theirs[name] = tensor
    return theirs


def _tensors_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """The state of a model; quantized layers have more in it than tensors."""
    state: dict[str, Any] = model.state_dict()
    return {name: value.detach() for name, value in state.items() if hasattr(value, "detach")}


def _check_present(model: PreTrainedModel, theirs: dict[str, Tensor], needed: set[str]) -> None:
    missing = sorted(needed - theirs.keys())
    if missing:
        raise ValueError(
            f"{type(model).__name__} lacks {len(missing)} tensors of a "
            f"{model.config.model_type} model: {first_of(missing)}. Convert the plain model of "
            "transformers (merge adapters and quantize later), or use `linformerize`."
        )


def _tell_unused(
    model: PreTrainedModel, theirs: dict[str, Tensor], used: set[str], family: Family
) -> None:
    unused = [n for n in theirs if n not in used and not n.endswith(family.unused)]
    if unused:
        warnings.warn(
            f"{len(unused)} tensors of {type(model).__name__} have no place in the Linformer and "
            f"were not used: {first_of(unused)}.",
            stacklevel=3,
        )


def first_of(names: Sequence[str], count: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
