"""What the ranks run with Hugging Face models."""

from __future__ import annotations

import copy
from typing import Any

import torch

from linformer_kit.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.loss import IGNORED
from linformer_kit.parallel import parallelize

from .cases import CLOSE, assert_same_gradients, mesh_of, own_part, randomized

BATCH, VOCABULARY, LENGTH = 3, 30, 37
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "k": 5,
    "window": 4,
    "decoder_window": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "num_labels": 5,
}
TASKS = {
    "mlm": LinformerForMaskedLM,
    "clm": LinformerForCausalLM,
    "token": LinformerForTokenClassification,
}


def _tokens(length: int = LENGTH, *, padded: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(2, VOCABULARY, (BATCH, length))
    ends = torch.tensor([length, length // 2, 3]) if padded else torch.full((BATCH,), length)
    return ids, (torch.arange(length) < ends[:, None]).long()


def check_language_model(task: str, *, positions: str, sequence: int, padded: bool = True) -> None:
    mesh = mesh_of(sequence)
    config = LinformerConfig(**TINY, position_embedding_type=positions)
    whole = randomized(TASKS[task], config).train()
    model = parallelize(copy.deepcopy(whole), mesh)
    ids, mask = _tokens(padded=padded)
    labels = ids if task == "clm" else ids % config.num_labels
    labels = labels.masked_fill((mask == 0) | (torch.rand(ids.shape) > 0.5), IGNORED)
    if task == "mlm":
        labels[:, LENGTH // 2 :] = IGNORED  # ranks without a label
    here = own_part(mesh, LENGTH)
    expected = whole(ids, attention_mask=mask, labels=labels)
    expected.loss.backward()
    found = model(ids[:, here], attention_mask=mask[:, here], labels=labels[:, here])
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    found.loss.backward()
    assert_same_gradients(model, whole, mesh, 1)
    with torch.no_grad():
        logits = model.eval()(ids[:, here], attention_mask=mask[:, here]).logits
        torch.testing.assert_close(
            logits, whole.eval()(ids, attention_mask=mask).logits[:, here], **CLOSE
        )


def check_classification(pooling: str, *, sequence: int) -> None:
    mesh = mesh_of(sequence)
    config = LinformerConfig(**TINY, pooling=pooling)
    whole = randomized(LinformerForSequenceClassification, config).train()
    model = parallelize(copy.deepcopy(whole), mesh)
    ids, mask = _tokens()
    if pooling == "cls":
        mask = mask.flip(1)  # the first real row is not on the first rank
    here = own_part(mesh, LENGTH)
    labels = torch.tensor([0, 3, 1])
    expected = whole(ids, attention_mask=mask, labels=labels)
    expected.loss.backward()
    found = model(ids[:, here], attention_mask=mask[:, here], labels=labels)
    torch.testing.assert_close(found.logits, expected.logits, **CLOSE)
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    found.loss.backward()
    assert_same_gradients(model, whole, mesh, 1)


def check_seq2seq(*, sequence: int) -> None:
    mesh = mesh_of(sequence)
    config = LinformerConfig(**TINY, is_encoder_decoder=True)
    whole = randomized(LinformerForConditionalGeneration, config).train()
    model = parallelize(copy.deepcopy(whole), mesh)
    ids, mask = _tokens()
    labels, label_mask = _tokens(22)
    labels = labels.masked_fill(label_mask == 0, IGNORED)
    here, there = own_part(mesh, LENGTH), own_part(mesh, 22)
    expected = whole(ids, attention_mask=mask, labels=labels)
    expected.loss.backward()
    found = model(ids[:, here], attention_mask=mask[:, here], labels=labels[:, there])
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    found.loss.backward()
    assert_same_gradients(model, whole, mesh, 1)
