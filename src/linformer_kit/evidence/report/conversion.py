"""The page of a conversion, made of its record: no model runs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import __version__
from ...artifact import check_replaceable, holds, write_atomic
from ...errors import user_input
from ...measure import quantities
from ...measure.provenance import provenance
from ..analysis import spectrum_view
from ..figures.figure import (
    OURS,
    VANILLA,
    Axis,
    BarChart,
    Chart,
    Group,
    Line,
    length_ticks,
)
from ..figures.sheet import Entry, Sheet, entries
from .page import MARKER, page
from .sections import Highlight, Section

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = dict[str, Any]

REMEDY = "Name another file with --report."
MEASURES = (
    ("embedding_cosine", "cosine of embeddings (mean of a row)", "{:.4f}"),
    ("token_cosine", "cosine of tokens", "{:.4f}"),
    ("masked_accuracy", "masked tokens right", "{:.1%}"),
    ("masked_perplexity", "masked-LM perplexity", "{:.4g}"),
)


def check_page(path: Path) -> None:
    """Refuse a file that no report wrote, before the work."""
    check_replaceable(path, _is_page, remedy=REMEDY)


def write_page(record: Record, path: Path) -> str:
    """Write the page; its verdict is returned."""
    check_page(path)
    with user_input(f"cannot write {path}", remedy=REMEDY):
        path.parent.mkdir(parents=True, exist_ok=True)
    said = verdict(record)
    text = page(
        title=f"{_name(record)} as a Linformer",
        answer=[said],
        highlights=highlights(record),
        sections=sections(record),
        problems=[],
        made=f"Made by linformer-kit {__version__}; the model was converted on {record['made']}. "
        f"{provenance([record])}.",
    )
    write_atomic(path, text.encode(errors="replace"), remedy=REMEDY)
    return said


def verdict(record: Record) -> str:
    """How much was kept and how much is saved, in one sentence."""
    scores, training = record.get("agreement"), record.get("training")
    settings = record["settings"]
    if training is not None:
        how = (
            f"distilled for {_minutes(training['minutes'])} "
            f"({quantities.count(training['steps'], 'step')})"
        )
    else:
        how = "untrained"
    if scores is None:
        kept = "was not compared with the original: it was converted without --text"
    else:
        kept = (
            f"has cosine {scores['embedding_cosine']:.3f} of embeddings and "
            f"{scores['token_cosine']:.3f} of tokens to the original on text it has not seen"
        )
    words = (
        f"{_name(record)} as a Linformer that reads {settings['max_length']:,} positions, {how}, "
        f"{kept}"
    )
    cost = _longest_cost(record)
    if cost is not None:
        ratio = cost["times_faster"]
        pace = "as fast as" if ratio >= 1 else "slower than"
        times = max(ratio, 1 / ratio)
        words += f"; at {cost['length']:,} tokens it is {times:.1f} times {pace} the original"
        if record["how"] == "re-homed":
            words += " with extended positions"
        saved = _memory_ratio(cost)
        if saved is not None:
            words += f" and takes {1 / saved:.0%} of its memory"
    return f"{words}."


def highlights(record: Record) -> list[Highlight]:
    found = []
    scores = record.get("agreement")
    if scores is not None:
        found += [
            Highlight(f"{scores['embedding_cosine']:.3f}", "cosine of embeddings to the original"),
            Highlight(f"{scores['token_cosine']:.3f}", "cosine of tokens to the original"),
        ]
    cost = _longest_cost(record)
    if cost is not None:
        found.append(
            Highlight(f"{cost['times_faster']:.1f}x", f"the speed at {cost['length']:,} tokens")
        )
        saved = _memory_ratio(cost)
        if saved is not None:
            label = f"of the original's memory at {cost['length']:,} tokens"
            found.append(Highlight(f"{1 / saved:.0%}", label))
    return found


def sections(record: Record) -> list[Section]:
    """In the order of the page; what was not measured is left out."""
    makers: tuple[Callable[[Record], Section | None], ...] = (
        _kept,
        _layers,
        _cost,
        _choice,
        _spectrum,
        _made,
    )
    return [section for make in makers if (section := make(record)) is not None]


def _kept(record: Record) -> Section | None:
    before, after = record.get("untrained"), record.get("trained")
    if before is None:
        return None
    original = {"embedding_cosine": 1.0, "token_cosine": 1.0, **record.get("original", {})}
    columns = [original, before, *([after] if after is not None else [])]
    rows = tuple(
        entries(label, *(form.format(scores[name]) for scores in columns))
        for name, label, form in MEASURES
        if name in before
    )
    text = record["text"]
    if after is not None:
        split = (
            f"The last tenth of each file was held out ({text['held_out_tokens']:,} tokens; "
            f"{text['train_tokens']:,} were trained on)."
        )
    else:
        split = f"Nothing was trained; the text has {text['held_out_tokens']:,} tokens."
    return Section(
        name="kept",
        short="What is kept",
        title="How much of the original is kept",
        lead=(
            f"On {quantities.count(before['pieces'], 'piece')} of {before['length']:,} tokens. "
            f"{split}"
        ),
        sheets=(
            Sheet(
                title="Before and after",
                columns=(
                    "",
                    "original",
                    "converted, untrained",
                    *(["after distillation"] if after is not None else []),
                ),
                rows=rows,
            ),
        ),
    )


def _layers(record: Record) -> Section | None:
    before, after = record.get("untrained"), record.get("trained")
    if before is None:
        return None
    names = tuple(f"layer {n}" for n in range(len(before["layer_errors"])))
    kinds = [("untrained", before, VANILLA)]
    if after is not None:
        kinds.append(("after distillation", after, OURS[0]))
    full = record["settings"]["full_layers"]
    groups = tuple(
        Group(
            name=label,
            values=tuple(found["layer_errors"]),
            colour=colour,
            labels=tuple(f"{label}: {error:.4f}" for error in found["layer_errors"]),
        )
        for label, found, colour in kinds
    )
    rows = tuple(
        entries(
            name,
            "full" if number in full else _k(record, number),
            *(f"{found['layer_errors'][number]:.4f}" for _, found, _ in kinds),
        )
        for number, name in enumerate(names)
    )
    return Section(
        name="layers",
        short="Layers",
        title="Where the converted model departs from the original",
        lead="|difference|² / |variation|² of each layer's output, in the whole model: errors add "
        "up from layer to layer. 0 is equal, 1 is as far as the mean of all tokens.",
        figures=(
            BarChart(
                name="layer-errors",
                title="Error of each layer's output",
                caption="",
                value=Axis(title="relative error"),
                categories=names,
                groups=groups,
            ),
        ),
        sheets=(
            Sheet(
                title="Error of each layer's output",
                columns=("layer", "k", *(label for label, _, _ in kinds)),
                rows=rows,
            ),
        ),
    )


def _cost(record: Record) -> Section | None:
    cost = record.get("cost")
    if not cost:
        return None
    lengths = [one["length"] for one in cost]
    caption = (
        "Batch 1, the encoder without its head, best of the rounds, both models in turn; memory "
        "beyond the weights, in fresh processes."
    )
    charts = []
    for key, title, unit, scale in (
        ("best", "Time of one input", "seconds", 1.0),
        ("bytes", "Peak memory of one input", "MB", 1e-6),
    ):
        lines = []
        for kind, label, colour in (
            ("original", "original", VANILLA),
            ("converted", "converted", OURS[0]),
        ):
            points = [(one["length"], one[kind][key]) for one in cost if one[kind][key]]
            if points:
                lines.append(
                    Line(
                        name=label,
                        x=tuple(float(n) for n, _ in points),
                        y=tuple(value * scale for _, value in points),
                        colour=colour,
                        labels=tuple(f"{label}, {n:,}: {v * scale:.4g} {unit}" for n, v in points),
                    )
                )
        if lines:
            charts.append(
                Chart(
                    name=f"cost-{key}",
                    title=title,
                    caption=caption,
                    x=Axis(title="tokens", scale="log", ticks=length_ticks(lengths)),
                    y=Axis(title=unit, scale="log"),
                    lines=tuple(lines),
                )
            )
    rows = tuple(
        entries(
            f"{one['length']:,}",
            *(quantities.seconds(one[kind]["best"]) for kind in ("original", "converted")),
            _faster(one["times_faster"]),
            *(quantities.size(one[kind]["bytes"]) for kind in ("original", "converted")),
        )
        for one in cost
    )
    notes = [
        f"{kind} at {one['length']:,}: {note}"
        for one in cost
        for kind in ("original", "converted")
        for note in (one[kind]["note"], one[kind]["memory_note"])
        if note
    ]
    return Section(
        name="cost",
        short="Time and memory",
        title="What it saves",
        lead="Beside the original with torch's fused attention; beyond its own length its table of "
        "positions is repeated.",
        figures=tuple(charts),
        sheets=(
            Sheet(
                title="Time and memory of one input",
                columns=(
                    "tokens",
                    "original",
                    "converted",
                    "times as fast",
                    "memory, original",
                    "memory, converted",
                ),
                rows=rows,
                caption=caption,
                notes=tuple(notes),
            ),
        ),
    )


def _choice(record: Record) -> Section | None:
    why = record.get("choices", {})
    if "errors_alone" not in why:
        return None
    kept = why["full_layers"]
    longest = max(why["errors_alone"]) or 1.0
    return Section(
        name="choice",
        short="Full layers",
        title="Which layers keep full attention",
        lead=f"{', '.join(f'Layer {n}' for n in kept) if kept else 'None'}. {why['rule']}",
        sheets=(
            Sheet(
                title="Error if one layer alone is exchanged",
                columns=("layer", "error", ""),
                rows=tuple(
                    entries(
                        f"{n}",
                        Entry(f"{error:.4f}", "bad" if n in kept else "plain", error / longest),
                        "full attention" if n in kept else "exchanged",
                    )
                    for n, error in enumerate(why["errors_alone"])
                ),
                caption="Measured on held-out rows that are not used for the scores above.",
            ),
        ),
    )


def _spectrum(record: Record) -> Section | None:
    found = record.get("choices", {}).get("spectrum") or record.get("spectrum")
    if found is None:
        return None
    k = record["settings"]["k"]
    chosen = f"k = {k} was given" if isinstance(k, int) else "k was chosen by it"
    return Section(
        name="spectrum",
        short="Low rank",
        title="The spectrum of the original's attention",
        lead=f"{spectrum_view.in_words(found)} Here {chosen}; the window comes on top. In this "
        "section layers are counted from 1, elsewhere from 0.",
        figures=tuple(spectrum_view.figures(found)),
        sheets=(spectrum_view.sheet(found),),
    )


def _made(record: Record) -> Section:
    settings, training = record["settings"], record.get("training")
    rows = [
        ("original", f"{record['options']['model']} ({record['class']})"),
        ("result", f"{record['result']}, {record['how']}, {record['parameters']:,} parameters"),
        *((name.replace("_", " "), _plain(value)) for name, value in settings.items()),
    ]
    if training is not None:
        options = record["options"]
        rows += [
            (
                "training",
                f"{quantities.count(training['steps'], 'step')}, {_minutes(training['minutes'])}",
            ),
            ("rows to train on", ", ".join(f"{c:,} of {n}" for n, c in training["rows"].items())),
            ("batch size, learning rate", f"{options['batch_size']}, {options['lr']:g}"),
        ]
    rows.append(("seed", f"{record['options']['seed']}"))
    return Section(
        name="made",
        short="Made",
        title="How it was made",
        lead="conversion.json in the model's folder has all of this.",
        sheets=(
            Sheet(
                title="Options",
                columns=("", "value"),
                rows=tuple(entries(name, value) for name, value in rows),
                keys=2,
            ),
        ),
    )


def _longest_cost(record: Record) -> Record | None:
    """The longest input that both models read."""
    both = [one for one in record.get("cost") or [] if one["times_faster"]]
    return both[-1] if both else None


def _memory_ratio(cost: Record) -> float | None:
    ours, theirs = (cost[kind]["bytes"] for kind in ("converted", "original"))
    return theirs / ours if ours and theirs else None


def _faster(ratio: float | None) -> Entry:
    if ratio is None:
        return Entry("-")
    return Entry(f"{ratio:.2f}", "good" if ratio > 1.05 else "bad" if ratio < 0.95 else "plain")


def _k(record: Record, layer: int) -> str:
    k = record["settings"]["k"]
    return str(k if isinstance(k, int) else k[layer])


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _minutes(minutes: float) -> str:
    return f"{minutes:.1f} minutes" if minutes >= 1 else f"{60 * minutes:.0f} seconds"


def _name(record: Record) -> str:
    return spectrum_view.short_name({"model": record["options"]["model"]})


def _is_page(path: Path) -> bool:
    return holds(path, MARKER)
