"""How fast E learns: more slowly the longer the input it mixes.

Adam moves every weight by about the learning rate, whatever its gradient. A row of E sums n
positions, so what one step does to that sum grows with n, as it grows with M for the rows of W. At
the rate that suits W, an E of some thousand positions is mostly the noise of its last steps. It
learns as W does at lr * M / n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .projection import LinearProjection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn


def by_rate(parameters: Iterable[Tensor], model: nn.Module) -> dict[float, list[Tensor]]:
    """Parameters of a model by what their learning rate is to be multiplied by.

    min(1, M / n) for each E and F that is learned, and 1 for all others.
    """
    rates: dict[Tensor, float] = {}
    for module in model.modules():
        projection = getattr(module, "projection", None)
        if isinstance(projection, LinearProjection):
            assert projection.max_length is not None
            dim = cast("int", module.dim)  # everything that owns a projection has one
            rates[projection.weight] = min(1.0, dim / projection.max_length)
    groups: dict[float, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(rates.get(parameter, 1.0), []).append(parameter)
    return groups


def parameter_groups(model: nn.Module, *, lr: float) -> list[dict[str, Any]]:
    """The parameters of a model for an optimizer of Adam's kind, E and F at rates of their own.

    torch.optim.AdamW(parameter_groups(model, lr=1e-3))
    """
    groups = by_rate(model.parameters(), model)
    return [{"params": some, "lr": lr * rate} for rate, some in groups.items()]
