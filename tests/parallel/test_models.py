"""Hugging Face models on parts of a sequence: losses and gradients are those of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .model_cases import check_classification, check_language_model, check_seq2seq

if TYPE_CHECKING:
    from .ranks import Ranks


@pytest.mark.parametrize(
    "positions", ["learned", pytest.param("sinusoidal", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("task", ["mlm", "clm", "token"])
def test_losses_of_tokens(ranks: Ranks, task: str, positions: str) -> None:
    ranks.run(check_language_model, task, positions=positions, sequence=4)


def test_no_padding(ranks: Ranks) -> None:
    ranks.run(check_language_model, "clm", positions="learned", sequence=2, padded=False)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_over_ranks(ranks: Ranks, pooling: str) -> None:
    ranks.run(check_classification, pooling, sequence=4)


def test_sequence_to_sequence(ranks: Ranks) -> None:
    ranks.run(check_seq2seq, sequence=4)
