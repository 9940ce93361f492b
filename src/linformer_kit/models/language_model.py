"""What language models have in common: when they make logits, their loss, and generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import GenerationMixin

from .cache import LinformerCache
from .loss import language_model_loss, logits_loss

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .base import LinformerPreTrainedModel


class LinformerGenerationMixin(GenerationMixin):
    """generate() with the state of a Linformer as its cache."""

    _is_stateful = True  # tokens cannot be taken back from a state: no assisted generation

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        kind = generation_config.cache_implementation
        if kind is not None:
            raise ValueError(
                "a Linformer has one kind of cache, the state of its decoder: got "
                f"cache_implementation={kind!r}. Leave it None."
            )
        if model_kwargs.get("past_key_values") is not None:
            super()._prepare_cache_for_generation(  # type: ignore[misc]
                generation_config, model_kwargs, *args, **kwargs
            )
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = LinformerCache()

    def _update_model_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As transformers', but a cache_position is for the first step: then the cache counts."""
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(*args, **kwargs)
        updated.pop("cache_position", None)
        return updated


def wants_logits(
    model: LinformerPreTrainedModel, labels: Tensor | None, return_logits: bool | None
) -> bool:
    """Whether a language model shall return its logits: they are the largest thing it can make."""
    if return_logits is None:
        return_logits = model.config.return_logits
    if return_logits is None:
        return_logits = not model.training
    return labels is None or return_logits


def loss_of(
    model: LinformerPreTrainedModel,
    hidden: Tensor,
    head: nn.Module,
    logits: Tensor | None,
    labels: Tensor,
    num_items: Tensor | int | None,
) -> Tensor:
    """The loss, of the logits where they are there, else of the rows they would be made of."""
    smoothing = model.config.label_smoothing if model.training else 0.0
    if logits is not None:
        return logits_loss(logits, labels, smoothing=smoothing, num_items=num_items)
    return language_model_loss(
        hidden,
        head,
        labels,
        chunk=model.config.loss_chunk,
        smoothing=smoothing,
        num_items=num_items,
    )
