"""The table, the verdict in words and the plots, from records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..bench import quantities
from ..train.run_folder import write_whole
from .plots import plot_curves, plot_over
from .variants import MAKES_FULL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CLOSE = 0.02  # as good as: within 2 %
LESS_IS_BETTER = ("loss", "perplexity", "bits_per_byte")
SHOWN = ("perplexity", "accuracy", "bits_per_byte", "macro_f1", "bleu", "chrf")


def report(records: Sequence[dict[str, Any]], home: Path) -> str:
    """Markdown: what was compared, the table, where the Linformer holds and where not."""
    names = [name for name in SHOWN if any(name in record["metrics"] for record in records)]
    lengths = " and ".join(str(n) for n in sorted({record["n"] for record in records}))
    lines = [f"# {len(records)} variants, task {records[0]['task']}, n {lengths}", ""]
    lines += table(records, names)
    lines += ["", *verdict(records, names), ""]
    for picture in (plot_curves(records, home), *plot_over(records, home)):
        lines.append(f"![{picture.stem}]({picture.name})")
    text = "\n".join(lines) + "\n"
    write_whole(home / "README.md", text)
    return f"{text}\nkept in {home}"


def table(records: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    head = ["variant", *names, "time a step"]
    rows = [
        [
            record["variant"],
            *(
                f"{record['metrics'][name]:.4g}" if name in record["metrics"] else ""
                for name in names
            ),
            quantities.seconds(record["step_seconds"]),
        ]
        for record in records
    ]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def verdict(records: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Against the vanilla variant of its kind, one sentence each: as good or not, faster or not."""
    if not any(record["full"] for record in records):
        return ["No vanilla Transformer among the variants: nothing to hold them against."]
    lines = []
    for record in records:
        if record["full"]:
            continue
        vanilla = vanilla_for(record, records)
        if vanilla is None:
            lines.append(
                f"- {record['variant']}: no vanilla Transformer that differs in this alone."
            )
            continue
        worse = []
        for name in names:
            ours, theirs = record["metrics"].get(name), vanilla["metrics"].get(name)
            if ours is None or theirs is None:
                continue
            less = name in LESS_IS_BETTER
            change = (ours - theirs) / max(abs(theirs), 1e-12)
            if (change if less else -change) > CLOSE:
                worse.append(f"{name} {abs(change):.1%} {'higher' if change > 0 else 'lower'}")
        speed = vanilla["step_seconds"] / record["step_seconds"]
        quality = "as good as vanilla (within 2 %)"
        if worse:
            quality = "not as good as vanilla: " + ", ".join(worse)
        pace = f"{speed:.2f} x as fast a step"
        lines.append(f"- {record['variant']}: {quality}; {pace}.")
    return lines


def vanilla_for(record: dict[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The full attention to hold a variant against: all else that was varied is the same."""
    for full in records:
        varied = {key: value for key, value in full["set"].items() if key not in MAKES_FULL}
        if full["full"] and all(record["set"].get(key) == value for key, value in varied.items()):
            return full
    return None
