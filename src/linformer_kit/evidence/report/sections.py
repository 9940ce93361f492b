"""The sections of the page; a section without evidence is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..analysis import heads_view, needle_view, spectrum_view
from ..bench import results, script_results, words
from . import pairs, runs_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..bench.views import Results
    from ..figures.figure import Figure
    from ..figures.sheet import Sheet
    from .collect import Evidence


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, a sentence, figures and tables."""

    name: str  # its anchor
    short: str  # in the navigation
    title: str
    lead: str
    figures: tuple[Figure, ...] = ()
    sheets: tuple[Sheet, ...] = ()

    @property
    def machines(self) -> list[str]:
        """What its figures were measured on: each once."""
        found = (one.machine for one in (*self.figures, *self.sheets) if one.machine)
        return list(dict.fromkeys(found))


class Highlight(NamedTuple):
    """A key figure and its label."""

    value: str
    label: str


def highlights(evidence: Evidence) -> list[Highlight]:
    """The key figures at the top of the page."""
    found = []
    best = words.best_saving(evidence.records)
    if best is not None:
        sdpa = f"SDPA at {best.length:,} tokens"
        found.append(Highlight(f"{best.time:.1f}x", f"faster than {sdpa}"))
        if best.memory is not None:
            found.append(Highlight(f"{best.memory:.1f}x", f"less memory than {sdpa}"))
        if best.old is not None:
            label = f"faster than the attention of 2020 at {best.old_length:,} tokens"
            found.append(Highlight(f"{best.old:.1f}x", label))
    for record in spectrum_view.spectra(evidence.records)[-1:]:
        if (ks := spectrum_view.range_of_k(record)) is not None:
            name = spectrum_view.short_name(record)
            label = f"k that keeps 90% of the attention's singular values in {name}, by layer"
            found.append(Highlight(ks, label))
    return found


def answer(evidence: Evidence) -> list[str]:
    """Three sentences: time and memory saved, training results, rank of the attention."""
    saved = words.grid_in_words(evidence.records) or words.growth_in_words(evidence.records)
    trained = pairs.in_words(evidence.runs)
    spectra = spectrum_view.spectra(evidence.records)
    low_rank = spectrum_view.in_words(spectra[-1]) if spectra else None
    return [
        saved or "How much time and memory is saved was not measured: run `linformer bench grid`.",
        trained
        or "How well it learns beside a vanilla Transformer was not measured: run `linformer "
        "compare`.",
        low_rank
        or "Whether a model's attention is low rank was not measured: run `linformer spectrum`.",
    ]


def sections(evidence: Evidence) -> list[Section]:
    """All sections in the order of the page."""
    found = [
        *_measured(evidence, results.GRID, results.GROWTH),
        _runs(evidence),
        *_spectra(evidence),
        *_heads(evidence),
        *_needles(evidence),
        *_measured(
            evidence,
            script_results.BUDGET,
            script_results.PEERS,
            results.DECODE,
            script_results.ROOFLINE,
        ),
    ]
    return _with_unique_figures([section for section in found if section is not None])


def _with_unique_figures(sections: Sequence[Section]) -> list[Section]:
    """Make names of figures unique and safe as names of files and anchors."""
    taken: set[str] = set()
    found = []
    for section in sections:
        figures = []
        for figure in section.figures:
            plain = re.sub(r"[^a-z0-9_-]+", "-", figure.name.lower()).strip("-")[:80] or "figure"
            name, number = plain, 1
            while name in taken:
                number += 1
                name = f"{plain}-{number}"
            taken.add(name)
            figures.append(replace(figure, name=name))
        found.append(replace(section, figures=tuple(figures)))
    return found


def _runs(evidence: Evidence) -> Section | None:
    if not evidence.runs:
        return None
    return Section(
        name="runs",
        short="Training",
        title="Does it learn as well?",
        lead=_about_runs(evidence),
        figures=tuple(runs_view.figures(evidence.runs)),
        sheets=(runs_view.sheet(evidence.runs),),
    )


def _about_runs(evidence: Evidence) -> str:
    if len(evidence.runs) == 1:
        return "The run that was found."
    alike = {pairs.comparable(run) for run in evidence.runs}
    if len(alike) == 1 and None not in alike:
        return (
            "Models that were trained on the same data with the same settings; only the attention "
            "and the seed differ."
        )
    return (
        "The runs that were found. Some differ in more than the attention: only runs that are "
        "equal in everything else are compared."
    )


def _spectra(evidence: Evidence) -> list[Section]:
    return [
        Section(
            name=f"spectrum-{number}",
            short="Low rank",
            title=f"Is the attention of {spectrum_view.short_name(record)} low rank?",
            lead=spectrum_view.in_words(record),
            figures=tuple(spectrum_view.figures(record)),
            sheets=(spectrum_view.sheet(record),),
        )
        for number, record in enumerate(spectrum_view.spectra(evidence.records), start=1)
    ]


def _heads(evidence: Evidence) -> list[Section]:
    return [
        Section(
            name=f"heads-{number}",
            short="Heads",
            title="What a head looks at",
            lead="The attention of one head is n x k: each token chooses among k rows, and E says "
            "which positions a row is made of.",
            figures=tuple(heads_view.figures(record)),
            sheets=(heads_view.sheet(record),),
        )
        for number, record in enumerate(heads_view.latest_heads(evidence.records), start=1)
    ]


def _needles(evidence: Evidence) -> list[Section]:
    return [
        Section(
            name=f"needle-{number}",
            short="Needles",
            title=f"What {spectrum_view.short_name(record)} finds in long documents",
            lead=needle_view.in_words(record),
            figures=tuple(needle_view.figures(record)),
            sheets=(needle_view.sheet(record),),
        )
        for number, record in enumerate(needle_view.latest_needles(evidence.records), start=1)
    ]


def _measured(evidence: Evidence, *benchmarks: Results) -> list[Section]:
    """A section for each benchmark that has records."""
    return [
        Section(
            name=one.bench,
            short=one.short,
            title=one.title,
            lead=one.lead,
            figures=tuple(one.figures(evidence.records)),
            sheets=tuple(one.sheets(evidence.records)),
        )
        for one in benchmarks
        if one.sheets(evidence.records)
    ]
