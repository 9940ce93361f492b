"""The table, the verdict in words and the plots, from records alone."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ..evidence.figures.pictures import pictures
from ..evidence.figures.sheet import Sheet, entries
from ..evidence.figures.text import for_markdown
from ..evidence.report.verdict import groups_of, verdict
from ..measure import quantities
from .plots import plots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..evidence.report.verdict import Group
    from ..measure.records import Record

SHOWN = (
    "perplexity", "accuracy", "bits_per_byte", "f1", "precision", "recall", "macro_f1", "ndcg@10",
    "recall@1", "recall@10", "mrr", "bleu", "chrf",
)  # fmt: skip
KNOWN = {  # to the baseline of a task
    "classify": "the most frequent label",
    "embed": "which words a text has",
    "tag": "the most frequent label of each token",
}
WRITTEN_BY = "<!-- Written by linformer compare, which replaces it when it runs again. -->"
COST_COLUMNS = ("parameters", "in E and F", "peak memory", "time a step")


def report(records: Sequence[Record], notes: Sequence[str] = ()) -> tuple[str, dict[str, bytes]]:
    """Markdown: what was compared, the table and the verdict; and the plots by file name."""
    groups = groups_of(records)
    names = [name for name in SHOWN if any(name in record["metrics"] for record in records)]
    files: dict[str, bytes] = {}
    for figure in plots(groups):
        files |= pictures(figure, ["png"])
    text = "\n".join(
        [
            _title(groups),
            "",
            table(groups, names).as_markdown(),
            "",
            *_about(groups, names),
            "",
            *(for_markdown(line) for line in verdict(groups, names)),
            *(f"- {for_markdown(note)}" for note in notes),
            "",
            *(f"![{name.removesuffix('.png')}]({name})" for name in files),
        ]
    )
    return text + "\n", files


def table(groups: Sequence[Group], names: Sequence[str]) -> Sheet:
    """A row a variant; metrics with the standard deviation over the seeds."""
    rows = []
    for group in groups:
        first = group.first
        counts = (first.get(name) for name in ("parameters", "projection_parameters"))
        rows.append(
            entries(
                group.name,
                *(spread(group.values(name)) for name in names),
                *("-" if count is None else f"{count:,}" for count in counts),
                quantities.size(first.get("memory")),
                quantities.seconds(first["step_seconds"]),
            )
        )
    return Sheet(title="", columns=("variant", *names, *COST_COLUMNS), rows=tuple(rows))


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2g}"


def summaries(records: Sequence[Record]) -> list[Record]:
    """For the file of records: each metric of a variant over its seeds."""
    found = []
    for group in groups_of(records):
        names = {name: None for run in group.runs.values() for name in run["metrics"]}
        metrics = {}
        for name in names:
            values = group.values(name)
            metrics[name] = {
                "mean": statistics.fmean(values),
                "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
                "min": min(values),
                "max": max(values),
            }
        found.append(
            {
                "kind": "comparison summary",
                "variant": group.name,
                "seeds": list(group.runs),
                "metrics": metrics,
            }
        )
    return found


def _title(groups: Sequence[Group]) -> str:
    lengths = sorted({run["n"] for group in groups for run in group.runs.values()})
    seeds = len(groups[0].runs)
    return (
        f"# {quantities.count(len(groups), 'variant')}, task {groups[0].first['task']}, n "
        f"{' and '.join(map(str, lengths))}, {quantities.count(seeds, 'seed')}"
    )


def _about(groups: Sequence[Group], names: Sequence[str]) -> list[str]:
    """What the columns are, and what the baseline reaches."""
    lines = [
        "Peak memory is that of training on one process: weights, gradients, optimizer and "
        "activations. The time of a step is the median of steps in which the variants took turns."
    ]
    if len(groups[0].runs) > 1:
        lines.append(
            "± is the standard deviation over the seeds. A seed sets weights, order, masks and "
            "dropout, and also how the data are split where validation or test are shares of the "
            "training file; variants are compared within each seed, on the same split."
        )
    found: dict[str, None] = {}
    for group in groups:
        baselines = [run["baseline"] for run in group.runs.values() if run.get("baseline")]
        for name in names:
            values = [one["metrics"][name] for one in baselines if name in one["metrics"]]
            if values:
                found.setdefault(f"{name} {spread(values)}", None)
    if found:
        task = groups[0].first["task"]
        known = KNOWN.get(task, "how often each token occurs")
        lines.append(f"Baseline, a model that knows only {known}: {', '.join(found)}.")
    return lines
