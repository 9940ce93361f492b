"""`parallelize`: a model whose calls take a part of a sequence on each rank."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from ..core.attention import LinformerAttention
from ..core.decoder import LinformerDecoder
from ..core.decoder_layer import DecoderLayer
from ..core.encoder import EncoderLayer, LinformerEncoder
from ..core.full_causal import CausalFullAttention
from .compress import SUPPORTED
from .decoder import ParallelDecoder, ParallelDecoderLayer
from .encoder import ParallelEncoder, ParallelEncoderLayer
from .parts import sequence_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Model = TypeVar("Model", bound=nn.Module)

CORE: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (LinformerEncoder, ParallelEncoder),
    (EncoderLayer, ParallelEncoderLayer),
    (LinformerDecoder, ParallelDecoder),
    (DecoderLayer, ParallelDecoderLayer),
)


def parallelize(model: Model, mesh: DeviceMesh) -> Model:
    """Cut the sequences of a model over the dimension `sequence` of a mesh, in place.

    Afterwards every rank calls the model with its part of the positions (`local_part`), and gets
    the output of its part; the loss of a Hugging Face model is that of the whole sequence, on every
    rank. Parameters, their names and the state_dict stay as they are, equal on all ranks.

    The gradients of the whole are the mean over all ranks of the mesh: wrap the model in DDP or
    FSDP over all ranks, or call `average_gradients`.
    """
    group = sequence_mesh(mesh).get_group()
    check(model)
    pairs: list[tuple[Any, Any]] = [*CORE, *_models()]
    found = False
    for module in list(model.modules()):
        for plain, parallel in pairs:
            if not isinstance(module, plain):
                continue
            if not isinstance(module, parallel):
                kind: Any = type(module)
                module.__class__ = joined(parallel, kind)
            module.sequence_group = group
            found = True
    if not found:
        raise ValueError(
            "only a LinformerEncoder, a LinformerDecoder or a model with one can be parallelized: "
            f"got {type(model).__name__}."
        )
    return model


def check(model: nn.Module) -> None:
    """Refuse what is not a sum over positions."""
    for name, module in model.named_modules():
        kind = None
        if isinstance(module, LinformerAttention) and module.k != 0:
            kind = module.kind
        elif isinstance(module, CausalFullAttention):
            kind = "full"
        if kind is not None and kind not in SUPPORTED:
            raise ValueError(
                f"a sequence can be cut over ranks with projection {', '.join(SUPPORTED)}, whose "
                f"compressed rows are sums over positions: got {kind!r} ({name or 'the model'}). "
                "Use one of these, or one rank a sequence."
            )


def _models() -> list[tuple[type[nn.Module], type[nn.Module]]]:
    """The Hugging Face models, if they have been imported: the core does without transformers."""
    if "linformer_kit.models.base" not in sys.modules:
        return []
    from .models import MODELS

    return list(MODELS)


@cache
def joined(parallel: Any, plain: Any) -> type[nn.Module]:
    """A class of the same name, with the methods of `parallel` before those of `plain`.

    The name stays: FSDP and transformers find layers by the name of their class.
    """
    return type(plain.__name__, (parallel, plain), {"__module__": parallel.__module__})
