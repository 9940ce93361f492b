"""The section `model`: the keys of `LinformerConfig` that a run may set, with type and range.

A key that is not given stays unset and takes `LinformerConfig`'s default. Whether values fit each
other is checked by `LinformerConfig` when the model is built; whether one value has a valid type
and range is checked here, without torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from .ranges import (
    Deviation,
    Epsilon,
    Fraction,
    Layers,
    Length,
    Rate,
    Section,
    Text,
    Whole,
    Width,
)

Activation = Literal["gelu", "gelu_tanh", "relu", "swiglu"]
Positions = Literal["none", "learned", "sinusoidal"]
Projection = Literal["linear", "conv", "mean", "max", "pool", "fixed", "dynamic", "full"]
Sharing = Literal["none", "headwise", "kv", "layerwise"]

DEFAULT_K = 256  # LinformerConfig's
NEED_MAX_LENGTH = ("linear", "conv", "mean", "max", "pool", "fixed")  # kinds of projection

UNSET: Any = None
START = "from"  # a keyword of Python, so its field has another name


class PlanSection(Section):
    """An order of multiplication."""

    shorten: Literal["input", "keys"]
    attend: Literal["fused", "absorbed"]


def _kind_of_k(value: object) -> str:
    return "(of each layer)" if isinstance(value, list) else "(of all layers)"


WholeLength = Annotated[Whole, Field(le=2**24)]  # 0: none
ProjectedLength = Annotated[
    Annotated[WholeLength | None, Tag("(of all layers)")]
    | Annotated[list[WholeLength], Field(min_length=1), Tag("(of each layer)")],
    Discriminator(_kind_of_k),
]


class ModelSection(Section):
    """The model. The meaning of each key is in the documentation of `LinformerConfig`.

    `from` is the folder of a model to start from, whose keys and tokenizer come along.
    """

    start: Text | None = Field(default=UNSET, alias="from")
    hidden_size: Width = UNSET
    num_hidden_layers: Layers = UNSET
    num_attention_heads: Width = UNSET
    num_key_value_heads: Width | None = UNSET
    head_dim: Width | None = UNSET
    intermediate_size: Width = UNSET
    hidden_act: Activation = UNSET
    hidden_dropout_prob: Rate = UNSET
    attention_probs_dropout_prob: Rate = UNSET
    activation_dropout: Rate = UNSET
    position_embedding_type: Positions | None = UNSET
    embedding_norm: bool | None = UNSET
    norm: Literal["pre", "post"] = UNSET
    layer_norm_eps: Epsilon = UNSET
    bias: bool = UNSET
    qkv_bias: bool | None = UNSET
    initializer_range: Deviation = UNSET

    k: ProjectedLength = UNSET
    projection: Projection = UNSET
    sharing: Sharing = UNSET
    window: WholeLength | None = UNSET
    global_tokens: WholeLength = UNSET
    keep_scale: bool = UNSET
    dropout_kind: Literal["rows", "weights"] = UNSET
    plan: PlanSection | None = UNSET
    neighbours: Annotated[Whole, Field(le=2**16)] = UNSET
    moving_average: bool = UNSET

    causal_attention: Literal["slots", "full"] | None = UNSET
    num_slots: WholeLength = UNSET
    rotary: Fraction = UNSET

    tie_word_embeddings: bool = UNSET
    loss_chunk: Whole = UNSET

    decoder_num_hidden_layers: Layers | None = UNSET
    decoder_num_attention_heads: Width | None = UNSET
    decoder_num_key_value_heads: Width | None = UNSET
    decoder_head_dim: Width | None = UNSET
    decoder_intermediate_size: Width | None = UNSET
    decoder_position_embedding_type: Positions | None = UNSET
    decoder_window: Length | None = UNSET
    context_projection: Projection | None = UNSET
    context_k: Length | None = UNSET
    context_sharing: Sharing = UNSET
    share_embeddings: bool = UNSET

    pooling: Literal["cls", "mean", "max"] = UNSET
    classifier_dropout: Rate | None = UNSET

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only the keys that were given: the others are left to `LinformerConfig`."""
        return {
            START if name == "start" else name: value
            for name, value in serialize(self).items()
            if name in self.model_fields_set
        }

    @property
    def options(self) -> dict[str, Any]:
        """The keys that were given, as arguments of `LinformerConfig`."""
        return {name: value for name, value in self.model_dump().items() if name != START}

    def needs_window(self) -> bool:
        """Whether a layer has neither compressed rows nor a window."""
        given = self.options
        k = given.get("k", DEFAULT_K)
        none = 0 in k if isinstance(k, list) else k == 0
        return none and not given.get("window") and given.get("projection") != "full"

    def projected_lengths(self) -> dict[str, int]:
        """The keys with a k that must not exceed the length of the inputs, and the largest k."""
        given, found = self.options, {}
        k = given.get("k", DEFAULT_K)
        if given.get("projection", "linear") in NEED_MAX_LENGTH and k is not None:
            found["k"] = max(k) if isinstance(k, list) else k
        if given.get("context_projection") in NEED_MAX_LENGTH and given.get("context_k"):
            found["context_k"] = given["context_k"]
        return found
