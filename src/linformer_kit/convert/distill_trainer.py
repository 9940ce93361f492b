"""The trainer of a conversion: `transformers.Trainer` with the teacher's outputs as targets.

A step is a function of the weights, the optimizer's state, the seed and the number of the step, so
a run of a number of steps that is killed and resumed ends with the same bits. A run of a number of
minutes depends on the clock: it counts the time that was trained before it was interrupted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ..training.progress import Logging
from ..training.trainer import StepTrainer
from .distillation import LAYERS_FIRST
from .distilling import BETAS, CLIP, WEIGHT_DECAY, distillation_loss, schedule
from .in_place_loss import in_place_loss, is_swapped
from .long_rows import long_loss
from .step_batches import StepBatches, StepNumbers

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn
    from transformers import TrainerControl, TrainerState

    from ..models.text_input import Frame
    from ..runs.folder import RunFolder
    from ..training.progress import Report

MOST_STEPS = 10**7  # of a run that ends by the clock
LOG_SECONDS, SAVE_SECONDS = 10.0, 60.0
SPENT = "spent_seconds"


class Clock:
    """How much of a training is done: by steps, or by the time that was trained."""

    def __init__(self, *, steps: int | None, minutes: float | None) -> None:
        self.steps = steps
        self.minutes = minutes
        self.before = 0.0  # seconds, until the run was interrupted
        self._since: float | None = None

    def start(self, before: float) -> None:
        self.before = before
        self._since = time.monotonic()

    @property
    def spent(self) -> float:
        return self.before + (0.0 if self._since is None else time.monotonic() - self._since)

    def progress(self, step: int) -> float:
        """From 0 to 1, after this many steps."""
        if self.steps is not None:
            return min(1.0, step / self.steps)
        assert self.minutes is not None
        return min(1.0, self.spent / (60 * self.minutes))

    def left(self, step: int, begun: int) -> float | None:
        """Seconds that are left; None before the first step of this start."""
        if self.minutes is not None:
            return max(0.0, 60 * self.minutes - self.spent)
        assert self.steps is not None
        done = step - begun
        return None if not done else (self.spent - self.before) / done * (self.steps - step)


class DistillTrainer(StepTrainer):
    """Trains a student on batches of `StepBatches`."""

    lower_rate = "Lower --lr."

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        batches: StepBatches,
        *,
        clock: Clock,
        frame: Frame,
        lr: float,
        seed: int,
        output: Path,
    ) -> None:
        self.clock = clock
        self.frame = frame
        steps = clock.steps or MOST_STEPS
        arguments = TrainingArguments(
            output_dir=str(output),
            use_cpu=not torch.accelerator.is_available(),
            max_steps=steps,
            per_device_train_batch_size=1,
            learning_rate=lr,
            weight_decay=WEIGHT_DECAY,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            logging_steps=MOST_STEPS,  # by time, see `Pace`
            save_steps=MOST_STEPS,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            seed=seed,
            disable_tqdm=True,
            report_to="none",
            logging_nan_inf_filter=False,
            log_level="error",
        )
        super().__init__(
            order=StepNumbers(steps),
            seed=seed,
            keep=2,
            model=student,
            args=arguments,
            data_collator=lambda batches: batches[0],
            train_dataset=batches,
        )
        self.teacher = teacher.to(arguments.device).eval().requires_grad_(False)
        self.short = batches.lengths[0]
        self.short_loss = in_place_loss if is_swapped(student) else distillation_loss
        self.remove_callback(PrinterCallback)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        if self.lr_scheduler is None:
            trained = cast("torch.optim.Optimizer", optimizer or self.optimizer)
            factor = lambda step: schedule(self.clock.progress(step))  # noqa: E731 - not pickled
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trained, factor)
        return cast("torch.optim.lr_scheduler.LRScheduler", self.lr_scheduler)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        model.eval()  # dropout would add noise to what is compared
        try:
            loss = self.loss_of(model, inputs, self.clock.progress(self.state.global_step))
        finally:
            model.train()
        return self.finite(model, inputs, loss)

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], progress: float) -> Tensor:
        if inputs["input_ids"].shape[1] > self.short:
            return long_loss(model, self.teacher, inputs, chunk=self.short, frame=self.frame)
        by_layer = progress < LAYERS_FIRST
        return self.short_loss(model, self.teacher, inputs, by_layer=by_layer)[0]

    def _about_loss(self, model: nn.Module, inputs: dict[str, Any], loss: float) -> str:
        return (
            f"the loss is {loss} at step {self.state.global_step + 1}: the weights have diverged. "
            f"The last checkpoint is intact. {self.lower_rate} and name another --out."
        )


class Pace(TrainerCallback):
    """Logs and saves by time, or saves every so many steps; ends a run when its time is up."""

    def __init__(self, clock: Clock, save_every: int | None) -> None:
        self.clock = clock
        self.save_every = save_every
        self._logged = self._saved = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._saved = self.clock.spent
        self._logged = self._saved - LOG_SECONDS  # the first step is logged

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        spent = self.clock.spent
        done = self.clock.progress(state.global_step) >= 1.0
        if self.save_every is not None:
            due = state.global_step % self.save_every == 0
        else:
            due = spent - self._saved >= SAVE_SECONDS
        if done:
            control.should_training_stop = True
        if done or due:
            control.should_save = True
            self._saved = spent
        if control.should_save or spent - self._logged >= LOG_SECONDS:
            control.should_log = True  # so that the log has the time of every checkpoint
            self._logged = spent


class DistillLogging(Logging):
    """Logs the time that was trained, and shows what is left."""

    trainer: DistillTrainer

    def __init__(self, trainer: DistillTrainer, folder: RunFolder, report: Report) -> None:
        super().__init__(trainer, folder, report)
        if trainer.clock.minutes is not None:
            self.unit = "seconds"
        self._first = 0  # the step that this start began with

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._first = state.global_step
        super().on_train_begin(args, state, control, **kwargs)

    def scale(self, state: TrainerState) -> tuple[int, int]:
        """Seconds for a run that ends by the clock."""
        clock = self.trainer.clock
        if clock.minutes is None:
            return super().scale(state)
        return int(60 * clock.minutes), int(clock.spent)

    def more(self, state: TrainerState) -> dict[str, Any]:
        clock = self.trainer.clock
        left = clock.left(state.global_step, self._first)
        return {
            SPENT: round(clock.spent, 3),
            "seconds_left": None if left is None else round(left, 1),
        }


def spent_before(folder: RunFolder) -> float:
    """The seconds that were trained until the last line of the log."""
    found = [line[SPENT] for line in folder.metrics() if SPENT in line]
    return float(found[-1]) if found else 0.0
