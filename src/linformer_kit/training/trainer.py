"""`transformers.Trainer` with randomness that is a function of the step, and whole checkpoints.

What a step does follows from the weights, the optimizer's state, the seed and the number of the
step: rows come from `TrainingOrder`, masks from the rows' draws, dropout from a seed set at each
step. So nothing else has to be saved for a resumed run to end with the same bits.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from ..artifact import publish_folder, remove_written, staging_folder
from ..core.learning_rates import group_by_rate
from ..errors import UserError
from ..metrics.row_scores import row_scores
from ..models.base import LinformerPreTrainedModel
from ..parallel.parts import sequence_mesh, sum_of_ranks
from ..parallel.swap import parallelize
from ..runs.folder import RESUME_HINT, RunFolder
from ..runs.models import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from transformers import EvalPrediction, TrainerControl, TrainerState, TrainingArguments

    from ..config.schema import RunConfig
    from ..data.collate import Collate
    from ..data.order import TrainingOrder
    from ..data.rows import Rows
    from .layout import Layout
    from .progress import RunLogging

TRAINERS_OWN = (
    "runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch",
)  # fmt: skip


# What torch.save, safetensors and tokenizers say of a file that cannot be written: they raise no
# OSError.
CANNOT_WRITE = ("iostream", "inline_container", "write", "os error", "I/O error")


class Steps(Protocol):
    """Which rows each step reads, as a batch sampler."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[list[Any]]: ...


class SeedEveryStep(TrainerCallback):
    """Dropout of a step follows from (seed, step, process)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        words = np.random.SeedSequence((self.seed, state.global_step, args.process_index))
        torch.manual_seed(int(words.generate_state(1, np.uint64)[0] >> 1))


class StepTrainer(Trainer):
    """Draws rows by an order of steps, and saves checkpoints that are whole.

    seed: of everything random. keep: how many checkpoints stay.
    """

    def __init__(self, *, order: Steps | None, seed: int, keep: int, **kwargs: Any) -> None:
        self.order = order
        self.keep = keep
        self.tokens_seen = 0
        self.waited = 0.0  # seconds that steps waited for data
        super().__init__(**kwargs)
        self.add_callback(SeedEveryStep(seed))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As Trainer's, with rates of their own for E and for what `_rates` names."""
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(model)
        trained = cast("nn.Module", self.model if model is None else model)
        own = self._rates(trained)
        for group in list(optimizer.param_groups):
            rates = group_by_rate(group["params"], trained, own)
            group["params"] = rates.pop(1.0, [])
            for rate, some in rates.items():
                optimizer.add_param_group({**group, "params": some, "lr": group["lr"] * rate})
        return optimizer

    def _rates(self, model: nn.Module) -> dict[Tensor, float]:
        """Factors of the learning rates of some parameters."""
        return {}

    def get_train_dataloader(self) -> DataLoader[Any]:
        assert self.order is not None
        loader: DataLoader[Any] = DataLoader(
            cast("Rows", self.train_dataset),
            batch_sampler=cast("Any", self.order),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self._dealt(self.accelerator.prepare(loader))

    def _dealt(self, loader: Any) -> DataLoader[Any]:
        """The batches of this process."""
        return cast("DataLoader[Any]", loader)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """As Trainer's; a loss that is not finite ends the run before the weights are updated."""
        return self.finite(model, inputs, super().compute_loss(model, inputs, *args, **kwargs))

    def finite(self, model: nn.Module, inputs: dict[str, Any], loss: Any) -> Any:
        """The loss, or an error if it is not finite."""
        value = (loss[0] if isinstance(loss, tuple) else loss).detach()
        if model.training and not bool(torch.isfinite(value)):
            raise UserError(self._about_loss(model, inputs, float(value)))
        return loss

    def _about_loss(self, model: nn.Module, inputs: dict[str, Any], loss: float) -> str:
        """What to say of a loss that is not finite."""
        raise NotImplementedError

    lower_rate = "Lower the learning rate."  # how, in messages

    def _check_weights_finite(self) -> None:
        """Refuse to save weights that are not finite over the last good ones."""
        for name, parameter in cast("nn.Module", self.model).named_parameters():
            local = getattr(parameter, "to_local", lambda parameter=parameter: parameter)()
            if not bool(torch.isfinite(local).all()):
                raise UserError(
                    f"the weights are not finite after step {self.state.global_step} ({name}), so "
                    f"they are not saved. The last checkpoint is intact. {self.lower_rate}"
                )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        batches, items = super().get_batch_samples(*args, **kwargs)
        self.waited += time.perf_counter() - started
        self.tokens_seen += self._read_by_all(sum(read_tokens(batch) for batch in batches))
        return batches, items

    def _read_by_all(self, tokens: int) -> int:
        """The tokens that all processes read in a step, of those of this one."""
        return self.args.world_size * tokens

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Trainer's rule of thumb does not hold for a Linformer; see `--dry-run`."""
        return 0

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Model and tokenizer, by the main process; not the pickled arguments."""
        if not self.args.should_save:  # transformers from 5.23 on calls this on all processes
            return
        assert output_dir is not None
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        model = cast("Any", self.accelerator.unwrap_model(self.model, keep_torch_compile=False))
        model.save_pretrained(output_dir, state_dict=state_dict)
        if self.processing_class is not None:
            cast("Any", self.processing_class).save_pretrained(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: randomness is a function of the step."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """As above."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Beside the others under another name, then renamed: there is no half a checkpoint."""
        home = Path(str(self.args.output_dir))
        name = f"{CHECKPOINT}{self.state.global_step}"
        staging = staging_folder(home / name)
        self._check_weights_finite()
        with saving(home, staging):
            self.args.output_dir = str(staging)
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.args.output_dir = str(home)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish_folder(staging / name, home / name)
                shutil.rmtree(staging, ignore_errors=True)
                folder = RunFolder(home.parent)
                for old in folder.checkpoint_folders()[: -self.keep]:
                    remove_written(old)
        self.accelerator.wait_for_everyone()

    def save_model_folder(self, final: Path, score: dict[str, Any] | None = None) -> None:
        """Model, tokenizer and score as a folder for `from_pretrained`, replaced as a whole."""
        staging = staging_folder(final)
        self._check_weights_finite()
        with saving(final.parent, staging):
            self.save_model(str(staging), _internal_call=True)
            if self.args.should_save:
                if score is not None:
                    (staging / "score.json").write_text(json.dumps(score) + "\n")
                publish_folder(staging, final)
        self.accelerator.wait_for_everyone()


class RunTrainer(StepTrainer):
    """Trains the task of a configuration, and scores rows.

    With several sequence ranks the processes of a sequence group read the same rows, each its part
    of the positions. Losses and scores are those of whole rows, on each of them.
    """

    lower_rate = "Lower train.lr, or set train.clip."

    def __init__(
        self,
        *,
        config: RunConfig,
        layout: Layout,
        order: TrainingOrder | None,
        vocab_size: int,
        **kwargs: Any,
    ) -> None:
        self.config = config
        self.layout = layout
        self.sequence_group: ProcessGroup | None = None
        self.order: TrainingOrder | None
        self.vocab_size = vocab_size
        self._micro_batches = 0  # of the step under way
        self.logging: RunLogging | None = None
        super().__init__(order=order, seed=config.seed, keep=config.train.keep, **kwargs)
        # Where rows are cut, their first label is left out already: see `OwnPositions`.
        self._loss_shifts_labels = config.task == "clm" and layout.sequence == 1
        if layout.sequence > 1:
            mesh = layout.mesh(self.args.device.type)
            self.sequence_group = sequence_mesh(mesh).get_group()
            parallelize(cast("nn.Module", self.model), mesh)

    def _rates(self, model: nn.Module) -> dict[Tensor, float]:
        """Of the weights outside the encoder, which are a classifier's."""
        train = self.config.train
        if train.head_lr is None:
            return {}
        body = set(model.get_submodule(LinformerPreTrainedModel.base_model_prefix).parameters())
        return {each: train.head_lr / train.lr for each in model.parameters() if each not in body}

    def create_accelerator_and_postprocess(self) -> None:
        """As Trainer's; and FSDP on CPUs, which accelerate would silently run as DDP."""
        super().create_accelerator_and_postprocess()
        if not self.config.train.fsdp or self.is_fsdp_enabled:
            return
        plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
        for state in (PartialState, AcceleratorState):
            state._shared_state["distributed_type"] = DistributedType.FSDP
        AcceleratorState._shared_state["fsdp_plugin"] = plugin
        self.is_fsdp_enabled = True

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """As Trainer's, with what the scores of rows need in the batches."""
        usual = self.data_collator
        self.data_collator = replace(cast("Collate", usual), scoring=True)
        try:
            return self._dealt(super().get_eval_dataloader(eval_dataset))
        finally:
            self.data_collator = usual

    def _dealt(self, loader: Any) -> DataLoader[Any]:
        """Batches are dealt to sequence groups, not to processes."""
        dealer = loader.batch_sampler
        if self.layout.sequence > 1:
            dealer.num_processes = self.layout.data
            dealer.process_index = self.layout.data_rank
        return cast("DataLoader[Any]", loader)

    def _read_by_all(self, tokens: int) -> int:
        if self.sequence_group is None:
            return super()._read_by_all(tokens)
        return self.layout.data * sum_of_ranks(tokens, self.sequence_group, self.args.device)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        if self.layout.sequence > 1:
            self.gather_function = self._gathered
        return super().evaluation_loop(*args, **kwargs)

    def _gathered(self, rows: Tensor) -> Tensor:
        """Values of rows (B, ...) of all processes, once for each sequence group.

        As accelerate's gather_for_metrics, rows that fill up the last batches are left out.
        """
        everywhere = cast("Tensor", self.accelerator.gather(rows))
        grid = everywhere.unflatten(0, (self.layout.data, self.layout.sequence, -1))
        found = grid[:, 0].flatten(0, 1)
        state = self.accelerator.gradient_state
        ends = state.end_of_dataloader and state.remainder > 0
        return found[: state.remainder] if ends else found

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return evaluation_order(cast("Rows", eval_dataset)).tolist()

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self._micro_batches += 1
        if self.sequence_group is not None and kwargs.get("num_items_in_batch") is not None:
            # Trainer multiplies by the number of processes; a group has one loss in common.
            loss = loss / self.layout.sequence
        return loss

    def _about_loss(self, model: nn.Module, inputs: dict[str, Any], loss: float) -> str:
        """Where a loss that is not finite comes from: which rows, or weights that have diverged."""
        step = self.state.global_step
        rows = []
        if self.order is not None:
            draws = self.order.step(step)
            turn = self._micro_batches * self.layout.data + self.layout.data_rank
            rows = [row for row, _ in draws[turn * self.order.batch_size :]]
        bad = []
        size = len(next(iter(inputs.values())))
        if not self.is_fsdp_enabled:  # there a forward call waits for the other processes
            plain = self.accelerator.unwrap_model(model)
            with torch.no_grad():
                for place in range(size):
                    alone = {name: value[place : place + 1] for name, value in inputs.items()}
                    if not bool(torch.isfinite(plain(**alone).loss)):
                        bad.append(place)
        every = len(bad) == size or not bad
        if every or not rows:
            where = "in every row of the batch: the weights have diverged. Lower train.lr"
        else:
            numbers = ", ".join(str(rows[place]) for place in bad[:5])
            where = f"in row {numbers} of the training part. Check its values, or lower train.lr"
        return (
            f"the loss is {loss} at step {step + 1}, {where}. The run is stopped; the last "
            "checkpoint is intact."
        )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._micro_batches = 0
        return super().get_batch_samples(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = super()._evaluate(*args, **kwargs)
        if self.logging is not None:
            named = {name.removeprefix("eval_"): value for name, value in metrics.items()}
            # The scores of embed are vectors: what Trainer takes for their loss is a component.
            left_out = (*TRAINERS_OWN, *(("loss",) if self.config.task == "embed" else ()))
            self.logging.evaluated(
                self.state.global_step,
                {k: v for k, v in named.items() if k not in left_out},
            )
        return metrics

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            scores = row_scores(
                model, inputs, self.config.task, self.vocab_size, group=self.sequence_group
            )
        # Trainer wants a loss and labels beside what the metrics are made of.
        return scores[:, 0].mean(), scores, torch.zeros(len(scores), device=scores.device)


class saving:  # noqa: N801  (reads as a verb, like contextlib's)
    """What goes wrong while saving is told in one line, and leaves the last good one alone."""

    def __init__(self, home: Path, staging: Path) -> None:
        self.home = home
        self.staging = staging

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        reason = None
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif isinstance(error, Exception) and any(word in str(error) for word in CANNOT_WRITE):
            reason = f"writing failed, is the disk full? ({str(error).splitlines()[0]})"
        if reason is not None:
            shutil.rmtree(self.staging, ignore_errors=True)
            raise UserError(f"cannot save to {self.home}: {reason}. {RESUME_HINT}") from error


def evaluation_order(rows: Rows) -> np.ndarray:
    """The order in which rows are scored: by length, so that little is padded."""
    return np.argsort(rows.column("length"), kind="stable")


def read_tokens(batch: dict[str, Tensor]) -> int:
    """The tokens of a batch without padding."""
    return sum(int(v.sum()) for name, v in batch.items() if name.endswith("attention_mask"))


def scores_of(prediction: EvalPrediction) -> np.ndarray:
    """The scores of rows in what Trainer hands to a metric."""
    return np.asarray(prediction.predictions)
