"""A conversion from the name of a model to a folder: choose, convert, distil or resume, save.

`linformer convert` calls `run_conversion`; `convert/rehome.py` and `convert/distilling.py` are the
same from Python.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..artifact import write_atomic
from ..data.masking import Masking
from ..errors import UserError, user_input
from ..machine_memory import require_memory
from ..measure.machine import describe
from .calibration import CALIBRATION, calibrate, needs_calibration
from .card import CARD, card
from .choices import RULE, errors_alone, halves, k_by_spectrum, spectrum_of, worst_layers
from .conversion_folder import ConversionFolder
from .distillation import as_batch
from .distilling import BATCH, LR
from .quality import masked_scores, scores, spread
from .source import InPlace, Rehomed, Settings, load_source
from .training_text import Text, read_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from torch import nn

    Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The options of a conversion; `steps` or `minutes` if it is trained."""

    model: str
    max_length: int | None = None
    k: int | Literal["auto"] = 128
    window: int = 64
    global_tokens: int = 1
    projection: str = "mean"
    keep_full: tuple[int, ...] | Literal["auto"] = ()
    positions: str = "copy"
    text: tuple[str, ...] = ()
    steps: int | None = None
    minutes: float | None = None
    batch_size: int = BATCH
    lr: float = LR
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.minutes is not None:
            raise UserError(
                f"give one of --steps and --minutes: got --steps {self.steps} and --minutes "
                f"{self.minutes:g}."
            )
        if not self.text:
            for name, wanted in (
                ("--steps", self.steps is not None),
                ("--minutes", self.minutes is not None),
                ("--k auto", self.k == "auto"),
                ("--keep-full auto", self.keep_full == "auto"),
            ):
                if wanted:
                    raise UserError(f"{name} needs text: give files with --text.")

    @property
    def trains(self) -> bool:
        return self.steps is not None or self.minutes is not None

    @property
    def chooses(self) -> bool:
        return "auto" in (self.k, self.keep_full)

    def as_json(self) -> dict[str, Any]:
        """What must be equal for an interrupted conversion to be resumed."""
        found = {**asdict(self), "text": list(self.text)}
        if self.keep_full != "auto":
            found["keep_full"] = list(self.keep_full)
        if not self.trains:
            found |= {"batch_size": None, "lr": None}
        return found


@dataclass(frozen=True)
class Prepared:
    """The model and the text of a conversion."""

    source: Rehomed | InPlace
    settings: Settings  # k and full_layers are not chosen yet if they are auto
    text: Text | None
    short: int | None  # tokens that both models read
    chosen_on: list[np.ndarray]
    measured_on: list[np.ndarray]
    masking: Masking | None

    @property
    def calibrated_on(self) -> list[np.ndarray]:
        """Rows that start values are computed from: never those that scores are measured on."""
        trained = [] if self.text is None else self.text.rows(self.text.length)
        return [row for row in trained if len(row) == self.short] or self.chosen_on


def prepare(job: Conversion, say: Say = lambda _: None) -> Prepared:
    """Load the model and read the text; whatever does not fit is refused here."""
    say(f"loading {job.model}")
    source = load_source(job.model)
    length = job.max_length or source.longest
    if length is None:
        raise UserError(
            f"{type(source.teacher).__name__} does not tell how many positions it reads. Give "
            "--max-length."
        )
    if job.positions != "copy" and (isinstance(source, InPlace) or length <= (source.longest or 0)):
        raise UserError(
            f"--positions {job.positions} has no effect: the result reads no more positions than "
            f"{job.model}. Leave it out, or give a larger --max-length."
        )
    _check_memory(job, source, length)
    settings = Settings(
        max_length=length,
        k=min(128, length) if job.k == "auto" else job.k,
        window=job.window,
        global_tokens=job.global_tokens,
        projection=job.projection,
        full_layers=[] if job.keep_full == "auto" else list(job.keep_full),
        positions=job.positions,
    )
    if not job.text:
        return Prepared(source, settings, None, None, [], [], None)
    if not source.reads_text:
        reads = getattr(source.teacher, "main_input_name", "input_ids")
        what = "it has no tokenizer" if reads == "input_ids" else f"it reads {reads}"
        if source.teacher.config.is_encoder_decoder:
            what = "it has a decoder too"
        raise UserError(
            f"--text needs an encoder of text, and {job.model} is none: {what}. Leave --text out "
            "and train the folder from Python, with linformer_kit.convert.distill."
        )
    short = min(length, source.longest or length)
    say(f"reading the text: {', '.join(job.text)}")
    text = read_text(
        job.text,
        source.tokenizer,
        length=short,
        longest=length if job.trains else None,
        least=2 if job.chooses else 1,
    )
    rows = text.held_out_rows()
    calibrates = job.projection == "pool" and not any(map(len, text.train))
    choose, measure = halves(rows) if job.chooses or calibrates else ([], rows)
    masking = None
    if source.masked_lm:
        masking = Masking(
            mask_id=source.tokenizer.mask_token_id,
            vocab_size=len(source.tokenizer),
            special_ids=tuple(source.tokenizer.all_special_ids),
            seed=job.seed,
        )
    return Prepared(source, settings, text, short, choose, spread(measure), masking)


def _check_memory(job: Conversion, source: Rehomed | InPlace, length: int) -> None:
    """Refuse a conversion that cannot fit into memory; sizes that a model does not tell count 0.

    A step keeps, for each token and layer, more than 10 rows of the model's size and 2.5 of the
    inner size of its feed-forward network (measured: 12.8 and 3.2 at least).
    """
    config: Any = source.teacher.config
    width, inner = (
        found if isinstance(found := getattr(config, name, None), int) else 0
        for name in ("hidden_size", "intermediate_size")
    )
    weights = sum(p.numel() for p in source.teacher.parameters())
    student = weights
    if isinstance(source, Rehomed):
        student += max(0, length - (source.longest or 0)) * width
        if job.projection == "linear" and job.k != "auto":
            student += job.k * length
    what, floats, remedy = "the converted model", weights + student, "Use a smaller --max-length."
    if job.trains:
        short = min(length, source.longest or length)
        tokens = max(job.batch_size * short, length)
        floats += 3 * student + int(tokens * source.layers * (10 * width + 2.5 * inner))
        what = f"a step of --batch-size {job.batch_size} rows of {short:,} tokens"
        remedy = "Use a smaller --batch-size, or a smaller --max-length."
    with user_input(f"cannot convert {job.model}"):
        require_memory(what, 4 * floats, remedy=remedy)


def choose(job: Conversion, prepared: Prepared, say: Say) -> tuple[Settings, dict[str, Any]]:
    """The settings without `auto`, and why they are what they are."""
    settings, why = prepared.settings, dict[str, Any]()
    if job.k == "auto":
        why["spectrum"] = spectrum_of(prepared.source, prepared.chosen_on, seed=job.seed, say=say)
        found = k_by_spectrum(why["spectrum"], settings.max_length)
        if len(found) != prepared.source.layers:
            raise UserError(
                f"--k auto needs the spectrum of each layer that is exchanged: {job.model} has "
                f"{len(found)} layers, and {prepared.source.layers} can be exchanged. Give --k."
            )
        settings = replace(settings, k=found)
        why["k"] = found
    if job.keep_full == "auto":
        errors = errors_alone(prepared.source, settings, prepared.chosen_on, say)
        settings = replace(settings, full_layers=worst_layers(errors))
        why |= {"errors_alone": errors, "full_layers": settings.full_layers, "rule": RULE}
    return settings, why


def build_student(prepared: Prepared, settings: Settings) -> tuple[nn.Module, list[str]]:
    """The untrained student, and what has to be said about it; `pool` is calibrated on the text."""
    student, told = prepared.source.build(settings)
    if not needs_calibration(student):
        return student, told
    rows = spread(prepared.calibrated_on, CALIBRATION)
    if not rows:
        return student, [*told, "pool is not calibrated: that needs text, give --text."]
    calibrate(student, [as_batch(torch.from_numpy(row)[None]) for row in rows])
    return student, told


def say_choices(why: dict[str, Any], say: Say) -> None:
    if "k" in why:
        n = why["spectrum"]["length"]
        say(
            f"k for each layer: {', '.join(map(str, why['k']))}: the ranks that keep 90% of the "
            f"singular values of its attention at {n} tokens."
        )
    if "errors_alone" in why:
        kept = why["full_layers"]
        errors = (f"{n}: {error:.4f}" for n, error in enumerate(why["errors_alone"]))
        say(f"error if a layer alone is exchanged: {', '.join(errors)}")
        named = ", ".join(map(str, kept)) if kept else "none"
        say(f"layers that keep full attention: {named}. {why['rule']}")


def say_scores(found: dict[str, Any], when: str, say: Say) -> None:
    words = (
        f"{when}: cosine to the original, on {found['pieces']} held-out pieces of "
        f"{found['length']:,} tokens: embeddings {found['embedding_cosine']:.4f}, tokens "
        f"{found['token_cosine']:.4f}"
    )
    if "masked_accuracy" in found:
        words += (
            f"; masked tokens right {found['masked_accuracy']:.1%}, perplexity "
            f"{found['masked_perplexity']:.4g}"
        )
    say(words)


def run_conversion(
    job: Conversion, out: Path, *, say: Say, save_every: int | None = None
) -> dict[str, Any] | None:
    """Convert, and train if the job says so, from wherever an earlier start got to.

    Returns the record of the finished conversion; None if it was stopped.
    """
    folder = ConversionFolder(out)
    options = job.as_json()
    done = folder.check_for(options)
    if done is not None:
        say(f"{out} holds this conversion already. Name another folder with --out to make it anew.")
        return done
    prepared = prepare(job, say)
    if job.trains:
        from .distill_run import distill_in_folder

        return distill_in_folder(job, prepared, folder, say=say, save_every=save_every)
    start, student = begin(job, prepared, say)
    return finish(job, prepared, folder, student, start)


def begin(job: Conversion, prepared: Prepared, say: Say) -> tuple[dict[str, Any], nn.Module]:
    """Choose and convert; the untrained student, with what was chosen and its scores."""
    settings, why = choose(job, prepared, say)
    say_choices(why, say)
    student, told = build_student(prepared, settings)
    for line in told:
        say(line)
    start: dict[str, Any] = {"settings": asdict(settings), "choices": why}
    if prepared.text is not None:
        rows, masking, teacher = prepared.measured_on, prepared.masking, prepared.source.teacher
        say(f"comparing with the original on {len(rows)} pieces of {len(rows[0]):,} tokens")
        start["untrained"] = scores(student, teacher, rows, masking=masking)
        if masking is not None:
            start["original"] = masked_scores(teacher, rows, masking)
        say_scores(start["untrained"], "untrained" if job.trains else "nothing is trained", say)
    return start, student


def finish(
    job: Conversion,
    prepared: Prepared,
    folder: ConversionFolder,
    student: nn.Module,
    start: dict[str, Any],
    trained: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Save the model, then the record, which says that the conversion is finished."""
    text = prepared.text
    record: dict[str, Any] = {
        "source": job.model,
        "class": type(prepared.source.teacher).__name__,
        "how": prepared.source.how,
        "result": type(student).__name__,
        "parameters": sum(p.numel() for p in student.parameters()),
        "options": job.as_json(),
        **start,
        "machine": describe(seed=job.seed, threads=torch.get_num_threads()),
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    if text is not None:
        record["text"] = {
            "train_tokens": sum(map(len, text.train)) if job.trains else 0,
            "held_out_tokens": sum(map(len, text.held_out)),
            **text.digest,
        }
        record["agreement"] = (trained or start).get("trained", start["untrained"])
    record |= trained or {}
    prepared.source.save(student, folder.staging)
    content = card(folder.staging, record, name=folder.path.resolve().name)
    write_atomic(folder.staging / CARD, content)
    folder.publish(record)
    return record
