"""`parallelize`: a model whose calls take a part of a sequence on each rank."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ..artifact import hashed
from ..core.attention import LinformerAttention
from ..core.decoder import LinformerDecoder
from ..core.decoder_layer import DecoderLayer
from ..core.encoder import EncoderLayer, LinformerEncoder
from ..core.full_causal import CausalFullAttention
from ..core.projection_kinds import ADD_OVER_SPANS
from .collectives import all_gather
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
    rank. Parameters, their names and the state_dict stay as they are, equal on all ranks: the first
    call of the model compares sizes, dtypes and weights, and raises on all ranks if they differ.
    Weights that FSDP has cut are not compared.

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
    _compare_at_first_call(model, mesh)
    return model


def check(model: nn.Module) -> None:
    """Refuse what is not a sum over positions."""
    for name, module in model.named_modules():
        kind = None
        if isinstance(module, LinformerAttention) and module.k != 0:
            kind = module.kind
        elif isinstance(module, CausalFullAttention):
            kind = "full"
        if kind is not None and kind not in ADD_OVER_SPANS:
            kinds = ", ".join(ADD_OVER_SPANS)
            raise ValueError(
                f"a sequence can be cut over ranks with projection {kinds}, whose compressed rows "
                f"are sums over positions: got {kind!r} ({name or 'the model'}). Use one of these, "
                "or one rank a sequence."
            )


def _compare_at_first_call(model: nn.Module, mesh: DeviceMesh) -> None:
    """Before the first collective of a call: ranks whose models differ would abort or be wrong."""
    structure, shapes = _structure(model), _shapes(model)

    def compare(model: nn.Module, *_: Any) -> None:
        handle.remove()
        whole = _shapes(model) == shapes  # not cut by FSDP since
        dtypes = [str(parameter.dtype) for parameter in model.parameters()]
        own = [_digest(repr((structure, dtypes)).encode()), _weights(model) if whole else 0, whole]
        group = sequence_mesh(mesh).get_group()
        found = all_gather(torch.tensor(own, device=mesh.device_type), group).tolist()
        structures, weights, complete = zip(*found, strict=True)
        _check_equal("sizes, settings and dtypes", structures)
        if all(complete):
            _check_equal("weights", weights)

    handle = model.register_forward_pre_hook(torch.compiler.disable(compare))


def _check_equal(what: str, digests: tuple[int, ...]) -> None:
    if len(set(digests)) == 1:
        return
    same = [[r for r, d in enumerate(digests) if d == one] for one in dict.fromkeys(digests)]
    listed = "; ".join(f"rank {', '.join(map(str, ranks))}" for ranks in same)
    raise ValueError(
        f"the ranks of a sequence group must hold models with the same {what}: got {len(same)} "
        f"different ones, of {listed}. Build the model with the same arguments and seed, or load "
        "the same file, on all of them."
    )


def _structure(model: nn.Module) -> list[Any]:
    """What defines the computation, apart from the weights."""
    return [
        (name, type(module).__name__, sorted(item for item in vars(module).items() if _plain(item)))
        for name, module in model.named_modules()
    ] + [sorted(_shapes(model).items())]


def _plain(item: tuple[str, Any]) -> bool:
    name, value = item
    return name != "training" and isinstance(value, bool | int | float | str)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of parameters and buffers that are whole and have memory."""
    return {
        name: tuple(tensor.shape)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if not hasattr(tensor, "full_tensor")
    }


def _weights(model: nn.Module) -> int:
    digest = hashed(size=8)
    for tensor in (*model.parameters(), *model.buffers()):
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "big", signed=True)


def _digest(content: bytes) -> int:
    return int.from_bytes(hashed(content, size=8).digest(), "big", signed=True)


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
