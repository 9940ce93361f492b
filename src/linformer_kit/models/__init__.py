"""Linformers as Hugging Face models. Importing this registers them with the auto classes."""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"linformer_kit.models needs {error.name}: pip install 'linformer-kit[models]'",
        name=error.name,
    ) from error

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .cache import LinformerCache
from .causal_lm import LinformerForCausalLM
from .config import LinformerConfig
from .decoder import LinformerDecoderModel
from .embedding import LinformerForEmbedding
from .encoder import LinformerModel
from .masked_lm import LinformerForMaskedLM
from .seq2seq import LinformerForConditionalGeneration, LinformerSeq2SeqModel
from .task_heads import (
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)

AutoConfig.register(LinformerConfig.model_type, LinformerConfig, exist_ok=True)
for _auto, _model in (
    (AutoModel, LinformerModel),
    (AutoModelForMaskedLM, LinformerForMaskedLM),
    (AutoModelForSequenceClassification, LinformerForSequenceClassification),
    (AutoModelForTokenClassification, LinformerForTokenClassification),
    (AutoModelForQuestionAnswering, LinformerForQuestionAnswering),
    (AutoModelForMultipleChoice, LinformerForMultipleChoice),
    (AutoModelForCausalLM, LinformerForCausalLM),
    (AutoModelForSeq2SeqLM, LinformerForConditionalGeneration),
):
    _auto.register(LinformerConfig, _model, exist_ok=True)
# Those of whom the Trainer knows, when it smooths labels itself, that they predict the next token.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[LinformerConfig.model_type] = LinformerForCausalLM.__name__

__all__ = [
    "LinformerCache",
    "LinformerConfig",
    "LinformerDecoderModel",
    "LinformerForCausalLM",
    "LinformerForConditionalGeneration",
    "LinformerForEmbedding",
    "LinformerForMaskedLM",
    "LinformerForMultipleChoice",
    "LinformerForQuestionAnswering",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerModel",
    "LinformerSeq2SeqModel",
]
