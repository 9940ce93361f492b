"""The verdict of a comparison, and when there is none.

A variant is judged against the vanilla Transformer that differs from it in the attention alone.
There is a verdict only if

1. every run of both has left the baseline (`compare/baseline.py`), and
2. both were trained with the same seeds, at least two of them.

A difference counts if it is larger than the noise of the seeds: the differences within each seed
have a mean d and a standard error e, and |d| > t e with the 97.5 % quantile t of Student's
distribution (a paired t-test, 95 %). Within a seed both runs see the same split of the data, the
same order and the same masks, so what a seed changes for both does not count as noise.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from ...metrics.tasks import MAIN_METRIC, is_better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record

# Keys that have no effect where nothing is compressed: such variants would be the same run twice.
WITHOUT_EFFECT = {
    ("model.projection", "full"): (
        "model.k",
        "model.sharing",
        "model.keep_scale",
        "model.window",
        "model.global_tokens",
    ),
    ("model.causal_attention", "full"): ("model.num_slots", "model.decoder_window"),
}
MAKES_FULL = tuple(key for key, _ in WITHOUT_EFFECT)
# The 97.5 % quantile of Student's distribution by degrees of freedom; between two, the lower one's.
QUANTILES = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
    10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip


def without_effect(values: dict[str, Any]) -> set[str]:
    """The keys that have no effect beside these values."""
    found = (keys for (key, value), keys in WITHOUT_EFFECT.items() if values.get(key) == value)
    return {key for keys in found for key in keys}


def is_vanilla(task: str, model: dict[str, Any]) -> bool:
    """Whether a model with these keys is the vanilla Transformer in all its parts."""
    causal, context = model.get("causal_attention"), model.get("context_projection")
    if task == "clm":
        return causal == "full" or (causal is None and model.get("projection") == "full")
    if model.get("projection") != "full":
        return False
    return task != "translate" or (causal in (None, "full") and context in (None, "full"))


class Group(NamedTuple):
    """The runs of one variant, by seed."""

    name: str
    runs: dict[int, Record]

    @property
    def first(self) -> Record:
        return next(iter(self.runs.values()))

    def values(self, metric: str) -> list[float]:
        found = (run["metrics"].get(metric) for run in self.runs.values())
        return [value for value in found if value is not None]


class Difference(NamedTuple):
    """A metric of two variants: both means, and how the difference varies over the seeds."""

    metric: str
    ours: float
    theirs: float
    margin: float  # t times the standard error of the difference

    @property
    def counts(self) -> bool:
        return abs(self.ours - self.theirs) > self.margin

    @property
    def better(self) -> bool:
        return is_better(self.metric, self.ours, self.theirs)

    def words(self) -> str:
        return f"{self.metric} {self.ours:.4g} against {self.theirs:.4g}{_percent(self)}"


def groups_of(records: Sequence[Record]) -> list[Group]:
    """The variants in the order of their records."""
    found: dict[str, Group] = {}
    for record in records:
        group = found.setdefault(record["variant"], Group(record["variant"], {}))
        group.runs[record.get("seed", 0)] = record
    return list(found.values())


def verdict(groups: Sequence[Group], metrics: Sequence[str]) -> list[str]:
    """One sentence for each variant that is not vanilla itself."""
    if not any(group.first["full"] for group in groups):
        return ["No vanilla Transformer among the variants: there is nothing to judge them by."]
    return [
        f"- {group.name}: {_sentence(group, vanilla_for(group, groups), metrics)}."
        for group in groups
        if not group.first["full"]
    ]


def vanilla_for(group: Group, groups: Sequence[Group]) -> Group | None:
    """The vanilla Transformer to judge a variant by: all else that was varied is the same."""
    for other in groups:
        fixed = {key: value for key, value in other.first["set"].items() if key not in MAKES_FULL}
        ours = group.first["set"]
        if other.first["full"] and all(ours.get(key) == value for key, value in fixed.items()):
            return other
    return None


def difference(metric: str, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Of two variants with the same seeds, at least two."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = statistics.stdev(apart) / len(apart) ** 0.5
    mean = statistics.fmean
    return Difference(metric, mean(ours), mean(theirs), _quantile(len(apart) - 1) * error)


def not_left(
    who: str, metric: str, scores: Record, baseline: Record | None, *, where: str = ""
) -> str | None:
    """That a run has not left its baseline; None if it has, or if the baseline is not known."""
    if baseline is None or baseline["left"]:
        return None
    known = baseline["metrics"].get(metric)
    beside = "" if known is None else f" ({metric} {scores[metric]:.4g}, baseline {known:.4g})"
    return f"{who} has not left the baseline{where}{beside}"


def _unjudged(group: Group, who: str) -> str | None:
    """Why there is no verdict on the runs of a variant; None if all have left the baseline."""
    for seed, run in group.runs.items():
        if run.get("baseline") is None:
            return f"the baseline of {who} is not known"
        where = f" with seed {seed}" if len(group.runs) > 1 else ""
        metric = MAIN_METRIC[run["task"]]
        reason = not_left(who, metric, run["metrics"], run["baseline"], where=where)
        if reason is not None:
            return reason
    return None


def _sentence(group: Group, vanilla: Group | None, metrics: Sequence[str]) -> str:
    if vanilla is None:
        return "no verdict: there is no vanilla Transformer that differs in the attention alone"
    shared = [name for name in metrics if group.values(name) and vanilla.values(name)]
    costs = _costs(group.first, vanilla.first)
    if not shared:
        return f"no verdict: nothing was evaluated; {costs}"
    reason = _unjudged(vanilla, "vanilla") or _unjudged(group, "this variant")
    if reason is not None:
        return f"no verdict: {reason}; {_figures(group, vanilla, shared)}; {costs}"
    if group.runs.keys() != vanilla.runs.keys():
        return f"no verdict: vanilla was trained with other seeds; {costs}"
    if len(group.runs) < 2:
        return f"one seed, so no verdict: {_figures(group, vanilla, shared)}; {costs}"
    found = [difference(name, group.values(name), vanilla.values(name)) for name in shared]
    parts = []
    for words, chosen in (
        ("worse than vanilla", [one for one in found if one.counts and not one.better]),
        ("better than vanilla", [one for one in found if one.counts and one.better]),
        (
            f"no difference beyond the spread of {len(group.runs)} seeds",
            [one for one in found if not one.counts],
        ),
    ):
        if chosen:
            parts.append(f"{words}: {', '.join(one.words() for one in chosen)}")
    return "; ".join([*parts, costs])


def _figures(group: Group, vanilla: Group, metrics: Sequence[str]) -> str:
    mean = statistics.fmean
    return ", ".join(
        Difference(name, mean(group.values(name)), mean(vanilla.values(name)), 0.0).words()
        for name in metrics
    )


def _costs(ours: Record, theirs: Record) -> str:
    words = f"{theirs['step_seconds'] / ours['step_seconds']:.2f} x as fast a step"
    mine, other = ours.get("memory"), theirs.get("memory")
    return f"{words}, {mine / other:.0%} of the memory" if mine and other else words


def _percent(found: Difference) -> str:
    if not found.theirs:
        return ""
    change = (found.ours - found.theirs) / abs(found.theirs)
    return f" ({change:+.1%})"


def _quantile(degrees: int) -> float:
    return QUANTILES[max(known for known in QUANTILES if known <= degrees)]
