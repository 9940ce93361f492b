"""The families of encoders that become Linformers, by the model_type of their configuration."""

from __future__ import annotations

from typing import Any

from .albert import ALBERT
from .bert import BERT
from .distilbert import DISTILBERT
from .electra import ELECTRA
from .roberta import ROBERTA

FAMILIES = {
    model_type: family
    for family in (BERT, ROBERTA, DISTILBERT, ELECTRA, ALBERT)
    for model_type in family.model_types
}


def longest(model: Any) -> int:
    """How many positions a model reads; some tables begin with rows of no position."""
    family = FAMILIES.get(model.config.model_type)
    first = 0 if family is None else family.first_position
    return int(model.config.max_position_embeddings) - first
