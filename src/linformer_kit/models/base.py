"""What every model has in common: its configuration, new weights, a new length, its masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers import initialization as init

from ..core.attention import LinformerAttention
from ..core.causal import CausalLinformerAttention
from ..core.moving_average import MovingAverage
from ..core.positions import LearnedPositions
from ..core.projection import Projection
from ..core.resize import resize_max_length
from ..core.short_conv import ShortConv
from ..core.window_rows import reset_row_bias
from .config import LinformerConfig
from .pooling import pooled

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class LinformerPreTrainedModel(PreTrainedModel):
    """Base of the models.

    New weights are RoBERTa's, N(0, initializer_range); E and the weights of neighbours the core's.
    """

    config: LinformerConfig
    config_class = LinformerConfig
    base_model_prefix = "linformer"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # a loss here is the mean of its batch, unless a class says more
    _no_split_modules = ["LinformerEncoderLayer", "LinformerDecoderLayer"]  # noqa: RUF012 - their type

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (Projection, ShortConv)):
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):  # mean and max have nothing to learn
                reset()
        elif isinstance(module, LinformerAttention):
            reset_row_bias(module.row_bias)
        elif isinstance(module, MovingAverage):
            init.copy_(module.log_time, module.initial_log_time())
        elif isinstance(module, LearnedPositions):
            init.normal_(module.weight, std=self.config.initializer_range)
        else:
            super()._init_weights(module)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        super().initialize_weights()
        # transformers passes over modules without weights of their own, so not in _init_weights
        with init.guard_torch_init_functions():  # what was loaded stays
            for module in self.modules():
                if isinstance(module, CausalLinformerAttention):
                    module.reset_slots()

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """The core checkpoints each layer, in the one form that is right for all it passes on."""
        options = getattr(gradient_checkpointing_func, "keywords", {})
        own = getattr(gradient_checkpointing_func, "func", checkpoint) is not checkpoint
        if own or options.get("use_reentrant") or every_n_layers != 1:
            raise ValueError(
                "a Linformer checkpoints every layer, with use_reentrant=False: got "
                f"gradient_checkpointing_kwargs={options}, every_n_layers={every_n_layers}, "
                f"offload={own}. Call gradient_checkpointing_enable() without these."
            )
        super()._set_gradient_checkpointing(enable)

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Give the model a new max_position_embeddings: E and learned positions are interpolated.

        Make the optimizer afterwards, and fine-tune a little: interpolation is a start.
        """
        resize_max_length(self, new_num_position_embeddings)
        for module in self.modules():
            if isinstance(module, LinformerPreTrainedModel):
                module.config.max_position_embeddings = new_num_position_embeddings

    def _pooled(self, hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
        """One row for each sample: (B, N, M) -> (B, M)."""
        return pooled(hidden, mask, pooling)

    def get_position_embeddings(self) -> Any:
        """The tables of learned positions: one, or one for each part that has one."""
        tables = tuple(m for m in self.modules() if isinstance(m, LearnedPositions))
        return tables[0] if len(tables) == 1 else tables


def real_positions(attention_mask: Tensor | None, *, batch: int, length: int) -> Tensor | None:
    """An attention_mask (B, N), 1 = keep, as the core takes it; None if nothing is left out.

    With a past the mask may cover that too: its last N columns are of the new tokens.
    """
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch:
        raise ValueError(
            f"attention_mask must have shape (batch, length) = ({batch}, {length}), 1 = keep: got "
            f"{tuple(attention_mask.shape)}."
        )
    if attention_mask.shape[1] < length:
        raise ValueError(
            f"attention_mask must have a column for each of {length} positions: got "
            f"{attention_mask.shape[1]}."
        )
    mask = attention_mask[:, attention_mask.shape[1] - length :].bool()
    if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask


def asked(argument: bool | None, usual: bool | None) -> bool:
    """What a call says, or else the configuration."""
    return bool(usual if argument is None else argument)
