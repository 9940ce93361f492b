"""The learning rate of E: smaller the longer the input.

Adam changes every weight by about the learning rate, whatever the size of its gradient. A row of E
sums n positions, so the effect of one step on that sum grows with n, as it grows with M for the
rows of W. At the rate that suits W, an E of some thousand positions consists mostly of the noise of
its last steps. At lr * M / n it learns as W does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .projection import LinearProjection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn


def group_by_rate(
    parameters: Iterable[Tensor], model: nn.Module, given: Mapping[Tensor, float] | None = None
) -> dict[float, list[Tensor]]:
    """Parameters of a model by the factor of their learning rate.

    min(1, M / n) for each learned E and F, what is given for some others, and 1 for the rest.
    """
    rates = dict(given or {})
    for module in model.modules():
        projection = getattr(module, "projection", None)
        if isinstance(projection, LinearProjection):
            assert projection.max_length is not None
            dim = cast("int", module.dim)  # every owner of a projection has one
            rates[projection.weight] = min(1.0, dim / projection.max_length)
    groups: dict[float, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(rates.get(parameter, 1.0), []).append(parameter)
    return groups


def parameter_groups(model: nn.Module, *, lr: float) -> list[dict[str, Any]]:
    """The parameters of a model for an optimizer like Adam, with separate rates for E and F.

    torch.optim.AdamW(parameter_groups(model, lr=1e-3))
    """
    groups = group_by_rate(model.parameters(), model)
    return [{"params": params, "lr": lr * rate} for rate, params in groups.items()]
