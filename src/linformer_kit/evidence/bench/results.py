"""The tables, charts and report sections of `linformer bench`, declared as data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...measure import quantities
from ..figures.figure import MATERIALISED, OURS, VANILLA
from ..figures.sheet import Entry
from .paper import TABLE_3
from .views import Column, Heat, Lines, Results, Style, Table, add_ratio, short_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...measure.records import Record
    from ..figures.sheet import Sheet

KIT, FULL = "linformer-kit", "full"
TOLERANCE = 0.97  # ratios closer to 1 are noise


def ratio_entry(times: float) -> Entry:
    tone = "good" if times > 1 / TOLERANCE else "bad" if times < TOLERANCE else "plain"
    return Entry(quantities.ratio(times), tone)  # type: ignore[arg-type]


def megabytes(value: float) -> str:
    return quantities.size(round(value))


def relative_to_ours(
    field: str, times: str, show: Callable[[Any], str]
) -> Callable[[Record], str | Entry]:
    """Our value as it is; the value of another model as a multiple of ours."""

    def entry(record: Record) -> str | Entry:
        value = record.get(field if record["model"] == KIT else times)
        if value is None:
            return Entry(short_note(record.get("note") or "-"), "quiet")
        return show(value) if record["model"] == KIT else ratio_entry(value)

    return entry


def name_window(record: Record) -> None:
    """Adds the window, if there is one, in words for a caption."""
    record["exact"] = f", window {record['window']}" if record.get("window") else ""


def _attention(records: list[Record]) -> None:
    where = ("layer", "mode", "length", "k")
    add_ratio(records, "times_memory", of="work", reference={"model": KIT}, by=where, inverse=True)
    for record in records:
        record["kept"] = ", freed memory kept" if record.get("keep_memory") else ""
        name_window(record)


_SHARE = Column("% of GEMM rate", "share_of_gemm", "{:.0%}".format, of=KIT)


def _attention_table(title: str, field: str, times: str, show: Any, compared: str) -> Table:
    return Table(
        title=title,
        rows=(("layer", "layer"), ("mode", "mode"), ("n", "length"), ("k", "k")),
        across="model",
        shown=lambda record: (
            record["model"] != "gemm"
            and (record.get(field) is not None or (field == "best" and "rounds" in record))
        ),
        heading=lambda name: "ours" if name == KIT else f"{compared} {name}",
        entry=relative_to_ours(field, times, show),
        columns=(_SHARE,) if field == "best" else (),
        notes=_fewer_rounds if field == "best" else lambda records: (),
    )


def _fewer_rounds(records: Sequence[Record]) -> list[str]:
    timed = [record for record in records if record.get("best") is not None]
    slow = [record for record in timed if len(record["seconds"]) < record["rounds"]]
    if not slow:
        return []
    return [f"{len(slow)} of {len(timed)} took over a second a run and had fewer rounds."]


ATTENTION = Results(
    bench="attention",
    keys=("model", "layer", "mode", "length", "k"),
    sizes=("dim", "num_heads", "batch", "window"),
    caption="dim {dim}, {heads}, batch {batch}{exact}{kept}",
    derive=_attention,
    tables=(
        _attention_table(
            f"{KIT}: time of one step (best of the rounds)",
            "best", "times_faster", quantities.seconds, "x faster than",
        ),
        _attention_table(
            f"{KIT}: peak memory of one training step (beyond weights and input)",
            "work", "times_memory", megabytes, "x less than",
        ),
    ),
)  # fmt: skip


def _growth(records: list[Record]) -> None:
    for name, field in (("times_faster", "best"), ("times_memory", "memory_work")):
        add_ratio(records, name, of=field, reference={"model": FULL}, by=("length",))
    for record in records:
        name_window(record)
        if record.get("best"):
            record["tokens_per_second"] = record["length"] * record["batch"] / record["best"]


def _growth_lines(name: str, title: str, unit: str, y: str, scale: float, show: Any) -> Lines:
    styles = {
        FULL: Style(label="full attention", colour=VANILLA, dash="dash"),
        KIT: Style(label="Linformer", colour=OURS[0]),
    }
    return Lines(
        name=name, title=title, unit=unit, y=y, scale=scale, show=show,
        style=lambda record, _: styles[record["model"]],
    )  # fmt: skip


GROWTH = Results(
    bench="growth",
    keys=("model", "length"),
    sizes=("dim", "num_heads", "k", "depth", "batch", "window"),
    caption="dim {dim}, {heads}, k {k}{exact}, depth {depth}, inference, memory beyond "
    "weights and input",
    derive=_growth,
    tables=(
        Table(
            title="Time and memory to read one long input",
            rows=(("tokens", "length"),),
            across="model",
            columns=(
                Column("full attention", "best", quantities.seconds, of=FULL),
                Column("Linformer", "best", quantities.seconds, of=KIT),
                Column("times faster", "times_faster", quantities.ratio, of=KIT, bar=True),
                Column("memory, full", "memory_work", megabytes, of=FULL),
                Column("memory, Linformer", "memory_work", megabytes, of=KIT),
                Column("times less", "times_memory", quantities.ratio, of=KIT),
                Column("with weights and input", "memory_total", megabytes, of=KIT, unless=FULL),
                Column(
                    "tokens a second", "tokens_per_second", "{:,.0f}".format, of=KIT, unless=FULL,
                ),
            ),
        ),
    ),
    charts=(
        _growth_lines(
            "growth-time", "Time to read one input of n tokens", "seconds", "best", 1.0,
            quantities.seconds,
        ),
        _growth_lines(
            "growth-memory", "Memory to read one input of n tokens", "megabytes", "memory_work",
            1e-6, megabytes,
        ),
    ),
    short="Growth",
    title="How it grows with the length",
    lead="One encoder and one input of growing length; full attention is PyTorch's "
    "fused kernel.",
)  # fmt: skip


BASELINES = ("materialised", "sdpa")
NAMES = {"sdpa": "SDPA", "materialised": "materialised"}


def _grid(records: list[Record]) -> None:
    """time_sdpa, memory_materialised, ...: how many times less Linformer takes."""
    for baseline in BASELINES:
        for what, field in (("time", "best"), ("memory", "work")):
            add_ratio(
                records, f"{what}_{baseline}", of=field, reference={"model": baseline},
                by=("length",),
            )  # fmt: skip
    tokens = min((record["length"] * record["batch"] for record in records), default=0)
    ks = sorted({record["k"] for record in records if record["k"] is not None})
    records.sort(key=lambda record: (record["k"] or 0, record["model"], record["length"]))
    for record in records:
        skipped = [
            one["model"] for one in records
            if one["length"] == record["length"] and one.get("note") and one.get("best") is None
        ]  # fmt: skip
        record |= {"tokens": tokens, "ff_dim": 4 * record["dim"], "skipped": skipped, "ks": ks}
        record["series"] = record["model"] if record["k"] is None else record["k"]
        if record.get("best") is not None:
            record["per_sequence"] = record["best"] / record["batch"]


def _saved(what: str, baseline: str) -> Callable[[Record], str | Entry]:
    """The ratio; against the Transformer of 2020 with the paper's in brackets."""

    def entry(record: Record) -> str | Entry:
        saved = record[f"{what}_{baseline}"]
        paper = TABLE_3.get((record["length"], record["k"])) if baseline == "materialised" else None
        known = None if paper is None else getattr(paper, what)
        beside = "" if known is None else f" ({known:g})"
        if saved is None:
            lacks = baseline == "materialised" and baseline in record["skipped"]
            return Entry(f"{'does not fit' if lacks else '-'}{beside}", "quiet")
        text = f"{saved:.1f}" if saved >= 1.05 else f"{saved:.2f}"
        if baseline == "materialised":
            if known is None:
                return text
            return Entry(text + beside, "good" if round(saved, 1) >= known else "bad")
        return Entry(text, "good" if saved >= 1.05 else "bad" if saved < 0.95 else "plain")

    return entry


def _grid_table(what: str, baseline: str, title: str) -> Table:
    return Table(
        title=title,
        rows=(("n", "length"),),
        across="k",
        shown=lambda record: (
            record["model"] == "linformer" and (what == "time" or "work" in record)
        ),
        heading="k = {:,}".format,
        empty="",
        entry=_saved(what, baseline),
    )


def _grid_style(record: Record, _: int) -> Style:
    model, k = record["model"], record["k"]
    if k is None:
        colour = VANILLA if model == "sdpa" else MATERIALISED
        return Style(label=f"vanilla, {NAMES[model]}", colour=colour, dash="dash")
    return Style(label=f"Linformer, k = {k}", colour=OURS[record["ks"].index(k) % len(OURS)])


GRID = Results(
    bench="grid",
    keys=("model", "length", "k"),
    sizes=("dim", "num_heads"),
    caption="one encoder layer, dim {dim}, {heads}, feed-forward {ff_dim}, inference, "
    "batches of at least {tokens:,} tokens",
    derive=_grid,
    tables=(
        _grid_table(
            "time", "materialised",
            "Time saved against the materialised Transformer (the paper's figure in brackets)",
        ),
        _grid_table("time", "sdpa", "Time saved against SDPA, the Transformer of today"),
        _grid_table(
            "memory", "materialised",
            "Memory saved against the materialised one (the paper's figure in brackets)",
        ),
        _grid_table("memory", "sdpa", "Memory saved against SDPA"),
    ),
    charts=(
        Lines(
            name="grid-time", title="Time to read n tokens", series="series", y="per_sequence",
            unit="seconds a sequence", show=quantities.seconds, style=_grid_style,
            caption="Both axes are logarithmic: a line twice as steep grows with the square. Time "
            "for each sequence; ",
        ),
        Lines(
            name="grid-memory", title="Memory to read n tokens", series="series", y="work",
            unit="megabytes", scale=1e-6, show=megabytes, style=_grid_style,
            caption="Peak beyond weights and input, for a batch, each measured in a process of its "
            "own; ",
        ),
        Heat(
            name="grid-saved", title="How many times faster than SDPA", rows="length",
            rows_title="tokens n", across="k", value="time_sdpa", unit="times faster",
            show="{:.1f}x".format, where={"model": "linformer"},
            caption="Where to expect a gain, and where not; ",
        ),
    ),
    short="Saved",
    title="What is saved, length by length",
    lead="One encoder layer, inputs of growing length. Vanilla is shown in two forms: SDPA, the "
    "fused attention of today, and materialised, which stores all n x n scores as in 2020.",
)  # fmt: skip


def headline(records: Sequence[Record]) -> list[Sheet]:
    """One row a length for k = 256, or the smallest k there is: times, and what is saved."""
    ks = sorted({record["k"] for record in GRID.select(records) if record["k"] is not None})
    k = 256 if 256 in ks else next(iter(ks), None)
    table = Table(
        title=f"Time to read a batch, k = {k}",
        rows=(("tokens", "length"),),
        across="series",
        columns=(
            Column("materialised", "best", quantities.seconds, of="materialised"),
            Column("SDPA", "best", quantities.seconds, of="sdpa"),
            Column("Linformer", "best", quantities.seconds, of=k),
            Column("times faster", "time_sdpa", quantities.ratio, of=k),
            Column("times less memory", "memory_sdpa", quantities.ratio, of=k),
        ),
    )
    return replace(GRID, tables=(table,)).sheets(records)


def _decode(records: list[Record]) -> None:
    for record in records:
        if record.get("best") is not None:
            record["per_token"] = record["best"] / record["steps"]
    add_ratio(records, "times_faster", of="best", reference={"model": "vanilla"}, by=("context",))


def _decode_lines(name: str, title: str, unit: str, y: str, scale: float) -> Lines:
    styles = {
        "vanilla": Style(label="vanilla, with a cache", colour=VANILLA, dash="dash"),
        "linformer": Style(label="Linformer", colour=OURS[0]),
    }
    return Lines(
        name=name, title=title, x="context", x_title="tokens before", unit=unit, y=y, scale=scale,
        show=lambda value: f"{value * scale:.3g} {unit}", at="after {:,} tokens",
        style=lambda record, _: styles[record["model"]],
        caption="A state of constant size makes a flat line. ",
    )  # fmt: skip


DECODE = Results(
    bench="decode",
    keys=("model", "context"),
    sizes=("dim", "num_heads", "depth", "k", "window", "batch"),
    caption="{layers}, dim {dim}, {heads}, k {k}, window {window}, batch {batch}; "
    "vanilla's cache is copied to grow by a row, as transformers' DynamicCache is; memory is the "
    "state and the peak of generating",
    derive=_decode,
    tables=(
        Table(
            title="One more token, after so many",
            rows=(("context", "context"),),
            across="model",
            columns=(
                Column("vanilla", "per_token", quantities.seconds, of="vanilla"),
                Column("Linformer", "per_token", quantities.seconds, of="linformer"),
                Column("times faster", "times_faster", quantities.ratio, of="linformer"),
                Column("memory, vanilla", "total", megabytes, of="vanilla"),
                Column("memory, Linformer", "total", megabytes, of="linformer"),
            ),
        ),
    ),
    charts=(
        _decode_lines(
            "decode-time", "Time of one more token", "milliseconds a token", "per_token", 1e3
        ),
        _decode_lines("decode-memory", "Memory while generating", "megabytes", "total", 1e-6),
    ),
    short="Generating",
    title="Generating after a long text",
    lead="What one more token costs. A vanilla decoder keeps every token; a Linformer keeps a "
    "window and k slots.",
)  # fmt: skip
