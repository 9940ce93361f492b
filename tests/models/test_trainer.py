"""transformers' Trainer: trains each head, saves, resumes, and counts the loss right."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from .cases import CASES, LANGUAGE_MODELS, WITH_LOSS


class Samples(Dataset):
    """As many samples as one batch of a case has, over and over."""

    def __init__(self, case, count):
        self.batch = case.inputs() | case.labels()
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {name: tensor[i % 2] for name, tensor in self.batch.items()}


def arguments(folder, **options):
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "learning_rate": 0.01,
        "max_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }
    return TrainingArguments(**usual | options)


@pytest.mark.parametrize("name", WITH_LOSS)
def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(name, tmp_path):
    case = CASES[name]

    def trainer(folder, **options):
        data = Samples(case, 8)
        return Trainer(
            case.build(), arguments(folder, **options), train_dataset=data, eval_dataset=data
        )

    whole = trainer(tmp_path / "whole")
    whole.train()
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert whole.evaluate()["eval_loss"] < losses[0]
    saved = tmp_path / "whole" / "checkpoint-2"
    assert {path.suffix for path in saved.glob("model*")} == {".safetensors"}
    resumed = trainer(tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(saved))
    for key, weight in whole.model.named_parameters():
        assert_close(resumed.model.get_parameter(key), weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["LinformerForSequenceClassification", *LANGUAGE_MODELS])
def test_accumulated_batches_count_as_one(name, tmp_path):
    case = CASES[name]

    def after_a_step(size, times):
        trainer = Trainer(
            case.build(),
            arguments(
                tmp_path / f"{size}x{times}",
                per_device_train_batch_size=size,
                gradient_accumulation_steps=times,
                max_steps=1,
                save_strategy="no",
                optim="sgd",
                learning_rate=1.0,
                max_grad_norm=0.0,
                lr_scheduler_type="constant",
            ),
            train_dataset=Samples(case, 4),
        )
        trainer.train()
        return trainer

    together, apart = after_a_step(4, 1), after_a_step(1, 4)
    losses = [t.state.log_history[0]["loss"] for t in (together, apart)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    before = case.build()
    for key, weight in together.model.named_parameters():
        assert_close(apart.model.get_parameter(key), weight, rtol=1e-3, atol=1e-5)
    changed = before.get_input_embeddings().weight - together.model.get_input_embeddings().weight
    assert changed.abs().max() > 1e-3


def test_gradient_checkpointing_and_bfloat16_are_an_argument_away(tmp_path):
    case = CASES["LinformerForMaskedLM"]
    trainer = Trainer(
        case.build(),
        arguments(tmp_path, bf16=True, gradient_checkpointing=True, save_strategy="no"),
        train_dataset=Samples(case, 8),
    )
    trainer.train()
    assert trainer.model.is_gradient_checkpointing
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


def test_predictions_have_logits(tmp_path):
    case = CASES["LinformerForMaskedLM"]
    trainer = Trainer(case.build(), arguments(tmp_path))
    output = trainer.predict(Samples(case, 4))
    assert output.predictions.shape == (4, 20, 29)
    assert torch.isfinite(torch.from_numpy(output.predictions)).all()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_trainer_s_own_label_smoothing_is_ours(name, tmp_path):
    case = CASES[name]
    batch = case.inputs() | case.labels()
    ours = case.build(label_smoothing=0.2).train()(**batch).loss
    trainer = Trainer(case.build().train(), arguments(tmp_path, label_smoothing_factor=0.2))
    if name == "LinformerForConditionalGeneration":  # as its data collator does
        shifted = trainer.model.prepare_decoder_input_ids_from_labels(batch["labels"])
        batch["decoder_input_ids"] = shifted
    assert_close(trainer.compute_loss(trainer.model, batch), ours)
