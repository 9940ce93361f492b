"""What a run says: a bar on a terminal, JSON lines elsewhere, and all metrics in its file."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from ..data.counts import notices
from ..measure.memory import process_peak
from ..metrics.tasks import MAIN_METRIC, is_better, numbers

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from ..runs.folder import RunFolder
    from .trainer import RunTrainer, StepTrainer

HANGUP = getattr(signal, "SIGHUP", None)  # not on every system
SIGNALS = [n for n in (signal.SIGINT, signal.SIGTERM, HANGUP) if n is not None]


class Report:
    """Where lines go: to people on a terminal, to programs elsewhere; of the main process alone.

    `label` names the run in every line, where one log holds the lines of several.
    """

    def __init__(self, *, main: bool = True, label: str | None = None) -> None:
        self.main = main
        self.label = label
        self.terminal = main and sys.stdout.isatty()
        self.console = Console(highlight=False, soft_wrap=True)
        self.bar: Progress | None = None

    def line(self, text: str, **values: Any) -> None:
        """`text` on a terminal; elsewhere `values` as JSON, or the text if there are none."""
        if not self.main:
            return
        if self.label is not None:
            text = f"[{self.label}] {text}"
            values = {"variant": self.label, **values} if values else values
        if self.terminal:
            (self.bar.console if self.bar is not None else self.console).print(text, markup=False)
        else:
            print(json.dumps(values) if values else text, flush=True)

    def notice(self, event: str, text: str, **values: Any) -> None:
        """Something the user must know: the sentence, elsewhere as JSON with its figures."""
        self.line(text, event=event, message=text, **values)

    def start_bar(self, total: int, done: int, unit: str = "steps") -> None:
        if not self.terminal:
            return
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.bar.start()
        self.task = self.bar.add_task(
            escape(self.label or "training"), total=total, completed=done, loss="-", rate="-"
        )

    def advance(self, done: int, **fields: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done, **fields)

    def stop_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def tell_unread(report: Report, part: str, counts: dict[str, Any], max_length: int) -> None:
    """Say which share of a part no model reads: cut off, or unknown to the tokenizer."""
    for event, text in notices(part, counts, max_length).items():
        report.notice(event, text, part=part, **counts)


def how_to_resume(processes: int = 1) -> str:
    """The command that resumes; with --overwrite it would start again."""
    given = [word for word in sys.argv[1:] if word != "--overwrite"]
    without = " without --overwrite" if len(given) < len(sys.argv) - 1 else ""
    if processes > 1:  # started by torchrun, whose own words are not known here
        return f"The same command{without} resumes."
    name = Path(sys.argv[0]).name
    program = ["python", "-m", "linformer_kit.cli"] if name == "__main__.py" else [name]
    return f"The same command{without} resumes: {shlex.join([*program, *given])}"


class Logging(TrainerCallback):
    """Writes metrics.jsonl, and tells the report."""

    unit = "steps"  # of `scale`

    def __init__(self, trainer: StepTrainer, folder: RunFolder, report: Report) -> None:
        self.trainer = trainer
        self.folder = folder
        self.report = report
        self.logged_seconds = 0.0  # of training, up to the last line of the log
        self._tokens = 0
        self._since = 0.0
        self._waited = 0.0
        self._step = 0
        self._spent = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        earlier = [line["seconds"] for line in self.folder.metrics() if "seconds" in line]
        self.logged_seconds = earlier[-1] if earlier else 0.0
        self._mark(state.global_step)
        self.report.start_bar(*self.scale(state), self.unit)

    @property
    def seconds(self) -> float:
        """Of training until now, without evaluations and saving, over all its parts."""
        return self.logged_seconds + self._spent + self.trainer.waited - self._waited

    def scale(self, state: TrainerState) -> tuple[int, int]:
        """What is to be done and what is done, for the bar."""
        return state.max_steps, state.global_step

    def more(self, state: TrainerState) -> dict[str, Any]:
        """Further values of a line of the log."""
        return {}

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._spent += time.perf_counter() - self._begun
        self.report.advance(self.scale(state)[1])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        waited = self.trainer.waited - self._waited
        took = self._spent + waited
        tokens = self.trainer.tokens_seen - self._tokens
        steps = max(1, state.global_step - self._step)
        self.logged_seconds += took
        line = {
            "step": state.global_step,
            "loss": logs["loss"],
            "grad_norm": logs.get("grad_norm"),
            "lr": logs["learning_rate"],
            "seconds": round(self.logged_seconds, 3),
            "seconds_per_step": round(took / steps, 5),
            "tokens_per_second": round(tokens / max(took, 1e-9), 1),
            "waiting_for_data": round(waited / max(took, 1e-9), 4),
            **self.more(state),
        }
        peak = process_peak(args.device)
        if peak is not None:
            line["peak_memory_gib"] = round(peak / 2**30, 3)
        logs["tokens_per_second"] = line["tokens_per_second"]  # for TensorBoard and the others
        self._write(line)
        self._mark(state.global_step)
        if self.report.terminal:
            rate = f"{line['tokens_per_second']:,.0f}"
            done = self.scale(state)[1]
            self.report.advance(done, loss=f"{logs['loss']:.3f}", rate=rate)
        else:
            self.report.line("", **line)

    def _write(self, line: dict[str, Any]) -> None:
        if not self.report.main:
            return
        with self.folder.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _mark(self, step: int) -> None:
        self._step = step
        self._tokens = self.trainer.tokens_seen
        self._waited = self.trainer.waited
        self._spent = 0.0


class RunLogging(Logging):
    """Logs validations too, and keeps the best model."""

    trainer: RunTrainer

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        """Called by the main process and by all others, with the same numbers."""
        scores = numbers(metrics)
        line = {"step": step, "seconds": round(self.seconds, 3), "validation": scores}
        shown = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self.report.line(f"step {step}: {shown}", **line)
        self._keep_best(step, scores)
        if self.trainer.args.should_save:  # last: what is in the log is not evaluated again
            self._write(line)

    def _keep_best(self, step: int, scores: dict[str, float]) -> None:
        name = MAIN_METRIC[self.trainer.config.task]
        score = scores[name]
        known = self.folder.best_score()
        self.trainer.accelerator.wait_for_everyone()  # all have read before one writes
        if not math.isfinite(score):
            text = f"step {step}: {name} is {score}, so this is not the best model."
            self.report.notice("not finite", text, step=step)
            return
        if known is not None and not is_better(name, score, known):
            return
        self.trainer.save_model_folder(
            self.folder.best, {"step": step, "metric": name, "score": score}
        )


class StopPolitely(TrainerCallback):
    """Save after the step under way on Ctrl-C, a scheduler's TERM or a closed terminal's HUP.

    A second INT or TERM ends at once; a closed terminal may send HUP twice. A signal that is
    ignored stays ignored: nohup and background jobs rely on it.
    """

    def __init__(self) -> None:
        self.asked = False  # in any process, as of the last `agree`
        self._received = False  # in this process
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopPolitely:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if number == HANGUP:
            _discard_output_of_lost_terminal()
        elif self._received:
            raise KeyboardInterrupt
        self._received = True

    def agree(self, args: TrainingArguments) -> bool:
        """Whether any process was asked: all of them must stop after the same step."""
        self.asked = self._received
        if args.world_size > 1:
            asked = torch.tensor(float(self._received), device=args.device)
            torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
            self.asked = bool(asked)
        return self.asked

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.agree(args):
            control.should_save = True
            control.should_training_stop = True
            control.should_evaluate = False  # done on resuming, see `validation_due`


def _discard_output_of_lost_terminal() -> None:
    """Writing to a terminal that was closed fails, which would end the run before it is saved."""
    for stream in (sys.stdout, sys.stderr):
        try:
            number = stream.fileno()
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
        except (OSError, ValueError, AttributeError):
            continue  # not a file, or closed
