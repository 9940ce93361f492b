"""The table and figures of a spectrum, made of its record."""

from __future__ import annotations

import colorsys
import statistics
from typing import TYPE_CHECKING

from ...measure import quantities
from ...measure.provenance import provenance
from ...runs.models import MODELS
from ..figures.figure import Axis, Chart, HeatMap, Line
from ..figures.sheet import Entry, Sheet, entries
from .spectrum import KIND, SHARES, suggested_k

LOW_RANK = {"0.9": 4, "0.99": 2}  # share: what part of the n ranks a layer may need to keep it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record


def spectra(records: Sequence[Record]) -> list[Record]:
    """The last spectrum of each model at each length."""
    found: dict[tuple[str, int], Record] = {}
    for record in records:
        if record.get("kind") == KIND:
            found[record["model"], record["length"]] = record
    return list(found.values())


def sheet(record: Record) -> Sheet:
    n = record["length"]
    rows = []
    for number, layer in enumerate(record["layers"], start=1):
        k = suggested_k(layer, n)
        at = min(record["rank"], len(layer["curve"])) - 1
        rows.append(
            entries(
                f"{number}",
                *(_rank(layer["smallest"][f"{s:g}"], layer) for s in SHARES),
                _rank(_rank_of_all_heads(layer), layer),
                f"{layer['curve'][at]:.1%}",
                Entry(f"{k or 'none found'}", "good" if k and k < n / 2 else "plain"),
            )
        )
    return Sheet(
        title=f"Ranks that keep the attention of {short_name(record)} (n = {n})",
        columns=(
            "layer",
            *(f"{share:.0%}" for share in SHARES),
            "90% in every head",
            f"kept by {record['rank']}",
            "suggested k",
        ),
        rows=tuple(rows),
        caption=_caption(record),
        machine=provenance([record]),
        notes=(
            "The suggested k keeps 90% of the singular values of the mean of the heads, as a "
            "multiple of 16. That is what the best projection of rank k keeps of this model; a "
            "Linformer learns its own E, which may need more, or get by with less.",
        ),
    )


def figures(record: Record) -> list[Chart | HeatMap]:
    layers = record["layers"]
    slug = "".join(c if c.isalnum() else "-" for c in short_name(record)).strip("-").lower()
    name = f"spectrum-{slug}-{record['length']}"
    heads = len(layers[0]["heads"]["kept"])
    return [
        Chart(
            name=name,
            title=f"How much of the attention the first r singular values keep: "
            f"{short_name(record)}",
            caption=f"A curve that rises early is low rank. Mean of the heads; {_caption(record)}.",
            machine=provenance([record]),
            x=Axis(title="rank r"),
            y=Axis(title="share of the singular values", range=(0.0, 1.02)),
            lines=tuple(
                Line(
                    name=f"layer {number}",
                    x=tuple(float(rank) for rank in _thinned(len(layer["curve"]))),
                    y=tuple(layer["curve"][rank - 1] for rank in _thinned(len(layer["curve"]))),
                    colour=_colour(number - 1, len(layers)),
                    marked=False,
                    labels=tuple(
                        f"layer {number}: rank {rank} keeps {layer['curve'][rank - 1]:.1%}"
                        for rank in _thinned(len(layer["curve"]))
                    ),
                )
                for number, layer in enumerate(layers, start=1)
            ),
        ),
        HeatMap(
            name=f"{name}-heads",
            title=f"What rank {record['rank']} keeps in each head: {short_name(record)}",
            caption=f"The larger the share, the lower the rank of the head; {_caption(record)}.",
            machine=provenance([record]),
            x=Axis(title="head"),
            y=Axis(title="layer"),
            columns=tuple(str(head + 1) for head in range(heads)),
            rows=tuple(str(number + 1) for number in range(len(layers))),
            values=tuple(tuple(layer["heads"]["kept"]) for layer in layers),
            labels=tuple(
                tuple(f"{value:.0%}" for value in layer["heads"]["kept"]) for layer in layers
            ),
            unit="share kept",
            written=heads <= 16,
        ),
    ]


def in_words(record: Record) -> str:
    """The ranks that keep 90 and 99 %, how many layers are low rank, and the trend over layers."""
    n, layers = record["length"], record["layers"]
    most, nearly_all = (
        _range([layer["smallest"][share] for layer in layers], record) for share in LOW_RANK
    )
    low = sum(is_low_rank(layer, n) for layer in layers)
    count = f"{low} of {quantities.count(len(layers), 'layer')}" if low else "no layer"
    return (
        f"The attention of {short_name(record)} at {n} tokens keeps 90% of its singular values "
        f"with {most} of {n} ranks and 99% with {nearly_all}, depending on the layer. Low rank "
        "here means 90% with at most a quarter of the ranks and 99% with at most half: "
        f"{count} {'is' if low < 2 else 'are'} low rank; {trend(record)}."
    )


def is_low_rank(layer: Record, length: int) -> bool:
    """Whether 90 % of the singular values are kept by n/4 ranks and 99 % by n/2."""
    return all(0 < layer["smallest"][share] <= length / part for share, part in LOW_RANK.items())


def _range(ranks: Sequence[int], record: Record) -> str:
    """The least and the most of these ranks; 0 is one beyond what was found."""
    beyond = f"more than {min(len(layer['curve']) for layer in record['layers'])}"
    shown = [str(rank) for rank in sorted(set(ranks) - {0})] + ([beyond] if 0 in ranks else [])
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def range_of_k(record: Record) -> str | None:
    """The range of the suggested k over the layers."""
    ks = [k for layer in record["layers"] if (k := suggested_k(layer, record["length"]))]
    if not ks:
        return None
    return f"{min(ks)}" if min(ks) == max(ks) else f"{min(ks)} to {max(ks)}"


def trend(record: Record) -> str:
    """How the rank changes with the layer; in the paper, higher layers have lower rank."""
    needed = [layer["smallest"]["0.9"] or len(layer["curve"]) for layer in record["layers"]]
    if len(needed) < 2:
        return "it has one layer"
    constant = len(set(needed)) == 1
    correlation = 0.0 if constant else statistics.correlation(range(len(needed)), needed)
    lowest = needed.index(min(needed)) + 1
    if correlation < -0.5:
        return "higher layers are lower rank, as in the paper"
    if correlation > 0.5:
        return "higher layers are higher rank, unlike in the paper"
    return f"the rank does not fall steadily with the layer (lowest in layer {lowest})"


def short_name(record: Record) -> str:
    """The last meaningful part of a path or of a name on the hub."""
    parts = [part for part in str(record["model"]).replace("\\", "/").split("/") if part]
    while len(parts) > 1 and parts[-1] in (*MODELS, "model", "."):
        parts.pop()
    return parts[-1] if parts else str(record["model"])


def _rank_of_all_heads(layer: Record) -> int:
    """The rank that keeps 90% in every head; 0 if it is beyond what was found."""
    ranks = layer["heads"]["smallest"]["0.9"]
    return 0 if 0 in ranks else max(ranks)


def _rank(rank: int, layer: Record) -> str:
    return f"{rank}" if rank else f"> {len(layer['curve'])}"


def _thinned(ranks: int) -> list[int]:
    """All of the first ranks, fewer of the later ones: a curve needs no 512 points."""
    chosen, rank = [], 1
    while rank < ranks:
        chosen.append(rank)
        rank += max(1, rank // 24)
    return [*chosen, ranks]


def _colour(number: int, count: int) -> str:
    """From warm (the first layer) to cool (the last)."""
    position = number / max(1, count - 1)
    red, green, blue = colorsys.hls_to_rgb(0.06 + 0.56 * position, 0.52, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _caption(record: Record) -> str:
    how = "exact" if record["method"] == "exact" else "by randomised SVD"
    pieces = quantities.count(record["pieces"], "piece")
    return f"{pieces} of {quantities.count(record['length'], 'token')}, {how}"
