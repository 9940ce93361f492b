"""Swap the attention inside any model for Linformer attention.

The model keeps its classes, its weights and their names. Learned projections and biases are added
under the name `linformer` of each attention module that was swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from .candidates import SUPPORTED, Candidate, attentions, head_size_of, heads_of
from .segment_means import default_sharing, start_from_segment_means
from .swapped import CHILD, LinformerMultiheadAttention, Settings, SwappedAttention

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..core.projection_kinds import ProjectionKind, Sharing

Model = TypeVar("Model", bound=nn.Module)

KEPT = "kept exact"


@dataclass(frozen=True)
class Record:
    """What became of one attention module: `why` says why it was left alone, "" if it was not."""

    name: str
    kind: str
    swapped: bool
    why: str
    k: int | None


def linformerize(
    model: Model,
    *,
    max_length: int,
    k: int | Sequence[int] = 128,
    window: int = 64,
    global_tokens: int = 1,
    projection: ProjectionKind = "mean",
    sharing: Sharing | None = None,
    keep_full: Collection[int | str] = (),
) -> Model:
    """Exchange the bidirectional self-attention inside a model, in place; nothing is trained.

    Args:
        model: contains nn.MultiheadAttention, nn.TransformerEncoder or a Hugging Face encoder.
        max_length: the longest input. `linear` and `fixed` refuse longer ones; segments of `mean`
            and `conv` have ceil(max_length / k) positions, also in longer inputs.
        k: the number of compressed rows, one for all or one for each attention that can be swapped.
        window: a position sees at least this many positions on each side exactly. An input of at
            most 2 * window positions gives the original's outputs.
        global_tokens: how many positions, the first ones, see and are seen by all exactly.
        projection: mean; pool, linear and conv, which start as segment means; or fixed.
        sharing: of learned projections: none, headwise or kv, see `LinformerAttention`. By default
            none for pool, where each head has a query of its own, and kv for the others.
        keep_full: attention to leave as it is: its number among those that can be swapped, or its
            name in the model.

    Causal attention and cross-attention are left alone. `linformerized(model)` lists every
    attention module and what became of it.

    Returns the same model.

    """
    found = attentions(model)
    able = [each for each in found if each.why_not is None]
    if any(each.swapped for each in found):
        raise ValueError(
            f"{type(model).__name__} is linformerized already: got "
            f"{sum(each.swapped for each in found)} swapped attention modules. Start again from "
            "the original model."
        )
    if not able:
        left = sorted({f"{type(c.module).__name__} ({c.why_not})" for c in found})
        raise ValueError(
            f"no attention of {type(model).__name__} can be swapped: found "
            f"{', '.join(left) or 'no attention module'}. Supported: {SUPPORTED}."
        )
    kept = _kept(able, keep_full)
    rows = [k] * len(able) if isinstance(k, int) else list(k)
    if len(rows) != len(able):
        raise ValueError(
            f"k must be one number or one for each of the {len(able)} attention modules that can "
            f"be swapped: got {len(rows)}."
        )
    settings = [
        Settings(
            max_length=max_length,
            k=each,
            window=window,
            global_tokens=global_tokens,
            projection=projection,
            sharing=default_sharing(projection) if sharing is None else sharing,
        )
        for each in rows
    ]
    chosen = zip(able, settings, strict=True)
    swap(model, {each: its for each, its in chosen if each.name not in kept})
    return model


def linformerized(model: nn.Module) -> list[Record]:
    """Every attention module of a model: swapped, or why not."""
    return [
        Record(
            each.name,
            type(each.module).__name__,
            each.swapped,
            "" if each.swapped else each.why_not or KEPT,
            getattr(each.module, CHILD).k if each.swapped else None,
        )
        for each in attentions(model)
    ]


def _kept(able: list[Candidate], keep_full: Collection[int | str]) -> set[str]:
    """The names of the attention modules to leave alone."""
    names = [each.name for each in able]
    kept = set()
    for each in keep_full:
        if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < len(names):
            kept.add(names[each])
        elif each in names:
            kept.add(str(each))
        else:
            raise ValueError(
                f"keep_full takes numbers from 0 to {len(names) - 1} or names of attention modules "
                f"such as {names[0]!r}: got {each!r}."
            )
    if len(kept) == len(names):
        raise ValueError(
            f"keep_full names all {len(names)} attention modules: nothing would be swapped."
        )
    return kept


def swap(model: nn.Module, settings: dict[Candidate, Settings]) -> None:
    """Swap the candidates among the attention modules of a model."""
    for candidate, its in settings.items():
        _swap(candidate.module, its)
    _avoid_fast_paths(model)


def _swap(module: nn.Module, settings: Settings) -> None:
    heads, kv_heads = heads_of(module)
    kind: type[SwappedAttention] = SwappedAttention
    if not isinstance(module, nn.MultiheadAttention):
        from .dispatch import DispatchedAttention, use_dispatch

        kind = DispatchedAttention
        use_dispatch(module)
    child = kind(settings, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_size_of(module))
    start_from_segment_means(child)
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    if like is not None:  # quantized layers have no parameters and give float32
        child.to(device=like.device, dtype=like.dtype)
    child.train(module.training)
    module.add_module(CHILD, child)
    if isinstance(module, nn.MultiheadAttention):
        module.__class__ = LinformerMultiheadAttention  # keeps parameters, hooks and references


def _avoid_fast_paths(model: nn.Module) -> None:
    """Keep the fused kernels of torch's encoder, which read the weights, from replacing calls of
    the attention modules.
    """
    for module in model.modules():
        inner = [m for m in module.modules() if isinstance(m, LinformerMultiheadAttention)]
        if inner and isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # only says whether the kernel may be used
        elif inner and isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False
