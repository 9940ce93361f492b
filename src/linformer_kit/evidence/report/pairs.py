"""Which runs are comparable, and the sentence about them.

Two runs are compared if they are equal in everything but the attention: in all of config.yaml
except the keys of `ATTENTION` and what may change when a run is resumed, in the digest of their
data, and in the part they were evaluated on. Seeds are compared pairwise, as in `linformer
compare`, by the rules of its verdict: see `verdict.py`.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from ...metrics.tasks import LOWER_IS_BETTER, MAIN_METRIC
from ...runs.folder import MAY_CHANGE, settings_of
from .verdict import difference, not_left

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .runs import Run

ATTENTION = (
    "projection", "k", "sharing", "keep_scale", "causal_attention", "num_slots", "window",
    "global_tokens", "decoder_window",
    "context_projection", "context_k", "context_sharing",
)  # fmt: skip
NOT_COMPARED = MAY_CHANGE | {"seed"} | {f"model.{name}" for name in ATTENTION}


class Pair(NamedTuple):
    """A Linformer and the vanilla Transformer, trained alike with the same seeds."""

    score: str
    ours: list[Run]
    theirs: list[Run]
    others: int  # more Linformers in the same group

    @property
    def values(self) -> tuple[list[float], list[float]]:
        ours, theirs = ([run.scores[self.score] for run in runs] for runs in self[1:3])
        return ours, theirs


def comparable(run: Run) -> str | None:
    """A key that is equal for runs that differ only in attention and seed; None if unknown."""
    if not run.config or run.part is None or run.task not in MAIN_METRIC:
        return None
    try:
        _canonical([_attention(run), run.config.get("seed")])
        return _canonical([settings_of(run.config, NOT_COMPARED), run.part])
    except (TypeError, ValueError, RecursionError):  # keys that are not text, in a damaged file
        return None


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """The best Linformer and the vanilla Transformer, for each group of comparable runs."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        kind = comparable(run)
        if kind is not None and MAIN_METRIC[run.task] in run.scores:  # type: ignore[index]
            alike.setdefault(kind, []).append(run)
    found = [pair for group in alike.values() if (pair := _best_pair(group)) is not None]
    return sorted(found, key=lambda pair: (-len(pair.ours), -_steps(pair), -pair.others))


def in_words(runs: Sequence[Run]) -> str | None:
    """A sentence about the pair with the most seeds and steps; None without a pair."""
    found = pairs(runs)
    if not found:
        return None
    pair = found[0]
    ours, theirs = (statistics.fmean(values) for values in pair.values)
    score = pair.score.replace("_", " ")
    seeds = "one seed" if len(pair.ours) == 1 else f"{len(pair.ours)} seeds"
    best = "the Linformer" if not pair.others else f"the best of {pair.others + 1} Linformers"
    words = f"Trained side by side with {seeds}, {best}"
    reason = _no_verdict(pair)
    if reason is not None:
        return (
            f"{words} has {score} {ours:.4g} and the vanilla Transformer {theirs:.4g}"
            f"{_time(pair)}; no verdict: {reason}."
        )
    result = difference(pair.score, *pair.values)
    figures = f"({score} {ours:.4g} against {theirs:.4g})"
    if result.counts:
        apart = abs(ours - theirs) / abs(theirs or 1)
        judged = f"is {apart:.0%} {'better' if result.better else 'worse'} than"
    else:
        judged = "differs by no more than the spread of the seeds from"
    return f"{words} {judged} the vanilla Transformer {figures}{_time(pair)}."


def _best_pair(runs: Sequence[Run]) -> Pair | None:
    """Of comparable runs: the Linformer with the best mean over the seeds shared with vanilla."""
    score = MAIN_METRIC[runs[0].task]  # type: ignore[index]
    linformers: dict[str, dict[str, Run]] = {}  # by attention, then by seed
    vanilla: dict[str, dict[str, Run]] = {}
    for run in runs:
        kind = vanilla if run.vanilla else linformers
        seed = _canonical(run.config.get("seed"))
        kind.setdefault(_canonical(_attention(run)), {})[seed] = run
    found: list[Pair] = []
    for ours in linformers.values():
        for theirs in vanilla.values():
            shared = [s for s in ours if s in theirs and ours[s].data == theirs[s].data]
            if shared:
                both = [ours[s] for s in shared], [theirs[s] for s in shared]
                found.append(Pair(score, *both, 0))
    if not found:
        return None

    def rank(pair: Pair) -> tuple[int, float]:
        mean = statistics.fmean(pair.values[0])
        return -len(pair.ours), mean if score in LOWER_IS_BETTER else -mean

    best = min(found, key=rank)
    rivals = {id(pair.ours[0]) for pair in found} - {id(best.ours[0])}
    return best._replace(others=len(rivals))


def _no_verdict(pair: Pair) -> str | None:
    """Why the difference cannot be judged; None if it can."""
    for who, runs in (("the vanilla Transformer", pair.theirs), ("the Linformer", pair.ours)):
        for run in runs:
            reason = not_left(who, pair.score, run.scores, run.baseline)
            if reason is not None:
                return reason.replace(pair.score, pair.score.replace("_", " "))
    if len(pair.ours) < 2:
        return "one seed is not enough"
    if any(run.baseline is None for run in (*pair.ours, *pair.theirs)):
        return "their baseline is not known"
    return None


def _time(pair: Pair) -> str:
    """Time of a step relative to vanilla, if both were timed on the same machine."""
    ours, theirs = pair.ours[0], pair.theirs[0]
    timed = ours.timed_step is not None and theirs.timed_step is not None
    same = all(ours.machine.get(name) == theirs.machine.get(name) for name in ("cpu", "threads"))
    if not ours.seconds_per_step or not theirs.seconds_per_step or not (timed or same):
        return ""
    return f", at {ours.seconds_per_step / theirs.seconds_per_step:.0%} of the time a step"


def _steps(pair: Pair) -> float:
    train = pair.ours[0].config.get("train")
    steps = train.get("steps") if isinstance(train, dict) else None
    return float(steps) if isinstance(steps, int) else 0.0


def _attention(run: Run) -> dict[str, Any]:
    model = run.config.get("model")
    return {k: v for k, v in model.items() if k in ATTENTION} if isinstance(model, dict) else {}


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
