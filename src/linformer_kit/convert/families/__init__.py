"""The families of encoders that become Linformers, by the model_type of their configuration."""

from __future__ import annotations

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
