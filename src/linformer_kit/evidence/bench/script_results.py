"""The tables and charts of the scripts in `benchmarks/`: a report of them needs no checkout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...measure import quantities
from ..figures.figure import MATERIALISED, OTHERS, OURS, VANILLA, Axis, Chart, Line
from ..figures.sheet import Entry
from .results import KIT, TOLERANCE, megabytes, name_window, relative_to_ours
from .views import Bars, Column, Drawn, Footer, Lines, Results, Style, Table, add_ratio, grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...measure.records import Record

SMALL = 2**18  # values of an input: below, a pass takes few milliseconds
EXACT = "at this length exact attention is little work, and E X is work of its own"
ABOUT_PEERS = {  # what it does; why it may be faster than ours, and up to which length
    "performer-pytorch": ("k random features", "", 0),
    "nystrom-attention": ("k landmarks", "", 0),
    "BERT (SDPA)": ("exact attention", EXACT, 1024),
    "ModernBERT": (
        "one layer in three attends to all, the others to a window of 128", EXACT, 1024,
    ),
    "Longformer": ("a window of k", "", 0),
    "BigBird": ("blocks of 64; full below 705 tokens", EXACT, 704),
    "Nyströmformer": ("k landmarks", "", 0),
    "FNet": (
        "no attention: a Fourier transform mixes the tokens",
        "it has no attention, no queries, keys or values: four products of a layer less",
        math.inf,
    ),
}  # fmt: skip
QUADRATIC = ("BERT (SDPA)", "ModernBERT")
PEER_COLOURS = {
    KIT: OURS[0],
    "BERT (SDPA)": VANILLA,
    "linformer": MATERIALISED,
    **dict(
        zip(
            ("linformer-pytorch", *(one for one in ABOUT_PEERS if one != "BERT (SDPA)")),
            OTHERS,
            strict=True,
        )
    ),
}


def _peers(records: list[Record]) -> None:
    for record in records:
        record.setdefault("mode", None)  # of equality
    add_ratio(
        records, "times_memory", of="work", reference={"model": KIT}, by=("length", "mode"),
        inverse=True,
    )  # fmt: skip
    for record in records:
        name_window(record)
        record["remark"] = ABOUT_PEERS.get(record["model"], ("",))[0]


def faster_peers(records: Sequence[Record], times: str, what: str) -> list[str]:
    """Each comparison in which a peer took less than ours, with the reason if known."""
    return [
        f"{record['model']} took {record[times]:.2f} of our {what} in {record['mode']} at n "
        f"{record['length']:,}: {_why(record)}"
        for record in records
        if record["model"] != KIT and record.get(times) is not None and record[times] < TOLERANCE
    ]


def _why(record: Record) -> str:
    if record["dim"] * record["length"] * record["batch"] < SMALL:
        return "so small an input is mostly the calling of operations, of which ours has more"
    _, reason, until = ABOUT_PEERS.get(record["model"], ("", "", 0))
    return reason if reason and record["length"] <= until else "measured so; no cause is known"


def _peers_table(title: str, mode: str, field: str, times: str, show: Any, what: str) -> Table:
    return Table(
        title=title,
        where={"mode": mode},
        rows=(("encoder", "model"), *((("what it does", "remark"),) if what == "time" else ())),
        across="length",
        shown=lambda record: record.get(field) is not None or "seconds" in record,
        heading="n = {:,}".format,
        entry=relative_to_ours(field, times, show),
        notes=lambda records: faster_peers(records, times, what),
        caption="" if what == "time" else "beyond weights and input; ",
    )


def _peer_style(record: Record, number: int) -> Style:
    model = record["model"]
    colour = PEER_COLOURS.get(model) or OTHERS[number % len(OTHERS)]
    return Style(label=model, colour=colour, dash="dash" if model in QUADRATIC else "solid")


PEERS = Results(
    bench="peers",
    keys=("model", "mode", "length"),
    sizes=("dim", "num_heads", "k", "batch", "depth", "window"),
    caption="{layers}, dim {dim}, {heads}, k {k}{exact}, batch {batch}",
    derive=_peers,
    tables=(
        _peers_table(
            "Forward pass: our time, and how many times faster that is", "inference", "best",
            "times_faster", quantities.seconds, "time",
        ),
        _peers_table(
            "Training step, forward and backward: our time, and how many times faster that is",
            "training", "best", "times_faster", quantities.seconds, "time",
        ),
        _peers_table(
            "Peak memory of a training step: ours, and how many times more theirs is", "training",
            "work", "times_memory", megabytes, "memory",
        ),
        Table(
            title="The same outputs, with the peer's weights copied into ours",
            where={"what": "equality"},
            same=False,
            rows=(("encoder", "model"),),
            columns=(
                Column(
                    "largest difference", "difference",
                    lambda value: Entry(f"{value:.1e}", "good" if value < 1e-4 else "bad"),
                ),
            ),
            caption="outputs of size 1, float32; linformer-pytorch with the bias of its E set to "
            "zero; ",
        ),
    ),
    charts=(
        *(
            Lines(
                name=f"peers-{mode}", title=f"{title}: encoders for long inputs",
                where={"mode": mode}, show=quantities.seconds, style=_peer_style, bars=True,
                caption="Dashed: quadratic in the length. ",
            )
            for mode, title in (("inference", "Forward pass"), ("training", "Training step"))
        ),
        Bars(
            name="peers-memory", title="Peak memory of a training step at n = {length:,}",
            where={"mode": "training"}, y="work", unit="megabytes", scale=1e-6, show=megabytes,
            caption="Beyond weights and input. ",
        ),
    ),
    short="Peers",
    title="Beside the other encoders for long inputs",
    lead="Every implementation that installs from PyPI and runs on a CPU, at matched sizes, taking "
    "turns in one process.",
)  # fmt: skip


# The WMT14 project's encoder at 16,384 tokens: what its vanilla grew by from n 256 to 16,384.
EARLIER_VANILLA_GROWTH = 9.6
FLAT = 1.15


def _budget(records: list[Record]) -> None:
    for record in records:
        record["series"] = "vanilla" if record["k"] is None else f"k = {record['k']}"
        record["model_name"] = "Encoder" if record["shape"] == "encoder" else "Encoder and decoder"
    records.sort(key=lambda record: (record["shape"], record["k"] or 0))


def _grown(pick: Callable[[dict[int, float]], float]) -> Callable[[list[Record]], Entry]:
    def entry(records: list[Record]) -> Entry:
        times = {r["length"]: r["best"] for r in records if r["length"] and r.get("best")}
        if not times:
            return Entry("-", "quiet")
        ratio = pick(times)
        vanilla = records[0]["k"] is None
        tone = "plain" if vanilla else "good" if ratio <= FLAT else "bad"
        return Entry(f"{ratio:.2f}x", tone)  # type: ignore[arg-type]

    return entry


def growth(times: dict[int, float]) -> float:
    """The slowest length over the fastest."""
    return max(times.values()) / min(times.values())


BUDGET = Results(
    bench="budget",
    keys=("shape", "k", "length"),
    sizes=("tokens", "dim", "num_heads", "depth"),
    caption="{layers}, dim {dim}, {heads}, inference, vanilla on SDPA",
    derive=_budget,
    tables=(
        Table(
            title="{model_name}: time of {tokens:,} tokens",
            split=("shape",),
            rows=(("n", "length"),),
            across="series",
            entry=lambda record: quantities.seconds(record.get("best")),
            footers=(
                Footer(
                    title="longest / shortest",
                    entry=_grown(lambda times: times[max(times)] / times[min(times)]),
                ),
                Footer(title="slowest / fastest", entry=_grown(growth)),
                Footer(
                    title="one GEMM beside it",
                    entry=lambda records: quantities.seconds(
                        next((r["best"] for r in records if r["length"] is None), None)
                    ),
                ),
            ),
            notes=lambda _: (
                "In the WMT14 project that this follows, vanilla grew "
                f"{EARLIER_VANILLA_GROWTH} times from n 256 to 16,384, on a GPU.",
            ),
        ),
    ),
    charts=(
        Lines(
            name="budget", title="{model_name}: the same tokens in longer pieces",
            split=("shape",), x_title="tokens n in a piece", series="series",
            unit="seconds for {tokens:,} tokens", show=quantities.seconds,
            style=lambda record, number: Style(
                label=record["series"],
                colour=VANILLA if record["k"] is None else OURS[(number - 1) % len(OURS)],
                dash="dash" if record["k"] is None else "solid",
            ),
            caption="A flat line means that length costs nothing. ",
        ),
    ),
    short="Fixed tokens",
    title="The same tokens, in longer pieces",
    lead="A batch has a fixed number of tokens. In longer inputs they cost a Linformer the same, "
    "and a vanilla Transformer more.",
)  # fmt: skip


GEMM, COPY, LAYER = "GEMM", "copy", "whole layer"


def _roofline(records: list[Record]) -> None:
    """Rates of each operation, and the shares of the GEMM rate and of its roof."""
    for cell in grouped(records, ("length", "k")).values():
        by_name = {record["operation"]: record for record in cell}
        if GEMM not in by_name or COPY not in by_name:
            continue
        gemm = by_name[GEMM]["flops"] / by_name[GEMM]["best"]
        bandwidth = by_name[COPY]["bytes"] / by_name[COPY]["best"]
        for record in cell:
            record |= {"gemm": gemm / 1e9, "bandwidth": bandwidth / 1e9}
            if record["operation"] in (GEMM, COPY) or not record["best"]:
                continue
            rate = record["flops"] / record["best"]
            record |= {"rate": rate / 1e9, "of_gemm": rate / gemm}
            record["all"] = record["best"] * record["times"]
            if record["bytes"]:
                record["intensity"] = record["flops"] / record["bytes"]
                record["of_roof"] = rate / min(gemm, bandwidth * record["intensity"])
    records[:] = [record for record in records if "rate" in record]


def _roof(records: list[Record], caption: str) -> Chart:
    found = [record for record in records if "intensity" in record]
    gemm, bandwidth = found[0]["gemm"], found[0]["bandwidth"]
    intensities = [record["intensity"] for record in found]
    low, high = min(0.5, *intensities) / 1.5, max(2 * gemm / bandwidth, *intensities) * 2
    size = f"n = {found[0]['length']:,}, k = {found[0]['k']}"
    roof = Line(
        name="roof", x=(low, gemm / bandwidth, high), y=(low * bandwidth, gemm, gemm),
        colour=VANILLA, dash="dash", marked=False,
    )  # fmt: skip
    points = [
        Line(
            name=one["operation"], x=(one["intensity"],), y=(one["rate"],),
            colour=(*OURS, *OTHERS)[number % 13], joined=False,
            labels=(
                f"{one['operation']}: {one['rate']:.1f} GFLOP/s, {one['of_gemm']:.0%} of GEMM, "
                f"{quantities.seconds(one['all'])} in all",
            ),
        )
        for number, one in enumerate(found)
    ]  # fmt: skip
    return Chart(
        name=f"roofline-{found[0]['length']}-{found[0]['k']}",
        title=f"Roofline of a layer at {size}",
        caption=f"The roof: bandwidth on the left, the GEMM rate on the right. {caption}.",
        x=Axis(title="FLOPs a byte", scale="log"),
        y=Axis(title="GFLOP/s", scale="log"),
        lines=(roof, *points),
    )


ROOFLINE = Results(
    bench="roofline",
    keys=("length", "k", "operation"),
    sizes=("dim", "num_heads", "batch"),
    caption="GEMM {gemm:.0f} GFLOP/s, copy {bandwidth:.1f} GB/s; dim {dim}, {heads}, "
    "batch {batch}, float32",
    derive=_roofline,
    tables=(
        Table(
            title="Operations of a layer at n = {length:,}, k = {k}",
            split=("length", "k"),
            rows=(("operation", "operation"),),
            columns=(
                Column("time", "all", quantities.seconds),
                Column("GFLOP/s", "rate", "{:.1f}".format),
                Column("FLOP/byte", "intensity", "{:.1f}".format),
                Column(
                    "of GEMM rate", "of_gemm",
                    lambda share: Entry(f"{share:.0%}", "good" if share >= 0.7 else "plain"),
                ),
                Column("of its roof", "of_roof", "{:.0%}".format),
            ),
            notes=lambda _: (
                "norm and gelu are counted with 8 FLOPs a value; what lies in a cache may pass the "
                "roof of the memory's bandwidth.",
            ),
        ),
    ),
    charts=(Drawn(draw=_roof, split=("length", "k")),),
    short="Roofline",
    title="How much of the machine is used",
    lead="Each operation of a layer against what this machine can do at most.",
)  # fmt: skip
