"""LinformerConfig: one flat configuration for every model.

Names are BERT's where BERT has the thing; the rest are the core's. A value is checked by its rule
(`rules.py`) when it is set. Whether values fit each other is checked when a config is made
(`fit.py`).
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, ClassVar

from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedConfig

from ..core.names import CONFIG_NAMES, unknown_names
from ..core.plan import Plan
from ..core.positions import Positions
from ..errors import listed, shown
from .fit import check_fit
from .rules import POOLINGS as POOLINGS  # imported from here by others
from .rules import RULES

# What transformers itself hands to a config beyond its fields.
_OF_TRANSFORMERS = {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "gradient_checkpointing",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "tokenizer_class",
    "torch_dtype",
}
# In a config.json: the names of attributes that a user added to the configuration.
CUSTOM = "custom_attributes"

_CAUSAL_WINDOW = 128
# Fields that older files do not have, with the values that leave their models as they were.
_LATER_KEYS = {
    "embedding_size": None,
    "pooler": False,
    "full_layers": None,
    "classifier_act": "tanh",
    "final_norm": True,
    "projection_bias": False,
    "lm_transform": True,
    "lm_act": None,
    "moving_average": False,
}


class LinformerConfig(PreTrainedConfig):
    """What a Linformer is made of.

    `projection="full"` makes every model the vanilla Transformer: k, sharing, window and
    global_tokens then have no effect.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size,
            hidden_act, hidden_dropout_prob, attention_probs_dropout_prob, type_vocab_size,
            initializer_range, layer_norm_eps, classifier_dropout, use_cache, tie_word_embeddings
            and token ids: as in BERT. hidden_act is gelu, gelu_tanh, relu or swiglu.
        embedding_size: the width of the embeddings if it is not hidden_size, as in ELECTRA and
            ALBERT; a linear layer then leads to hidden_size.
        pooler: whether LinformerModel has BERT's pooler, a layer and tanh on its first row.
        classifier_act: between the two layers of a classification head: tanh, gelu or relu.
        full_layers: the numbers, from 0, of an encoder's layers with full attention.
        final_norm: whether an encoder with norm="pre" ends with a norm.
        lm_transform: whether a masked language model has a layer, an activation and a norm before
            the words.
        lm_act: that activation: gelu, gelu_tanh or relu. None is gelu_tanh if hidden_act is, else
            gelu.
        max_position_embeddings: the longest input of an encoder, the core's max_length.
        num_key_value_heads: fewer than heads lets groups of heads share keys and values.
        head_dim: by default hidden_size // num_attention_heads.
        activation_dropout, dropout_kind, norm, bias, qkv_bias, keep_scale, projection_bias: as in
            the core.
        position_embedding_type: learned, sinusoidal or none, added to the input. None is `learned`
            in an encoder and `none` in a causal model, whose heads are rotated by position.
        neighbours: over how many tokens, an odd number, a convolution adds to each row of an
            encoder's input what stands beside it; 0 has none. See `LinformerEncoder`.
        moving_average: whether sums of all rows before and after, which decay over learned times,
            are added to an encoder's input. See `core/moving_average.py`.
        embedding_norm: a norm after the embeddings; None has one with norm="post", as BERT.
        k, projection, sharing: of the encoder, see `LinformerAttention`. k may be a list.
        window: how many positions on each side, or before it in a causal model, a query sees
            exactly, at least. None is 0 in an encoder, which then has compressed rows only, and 128
            in a causal model.
        global_tokens: how many positions of an encoder, the first ones, see and are seen by all
            others exactly.
        plan: an order of multiplication to use always, {"shorten": ..., "attend": ...}.
        causal_attention: slots or full, in causal models and decoders; None is `full` with
            projection="full", else `slots`.
        num_slots, rotary: of the causal attention, k and rotary in the core.
        decoder_*: of the decoder of LinformerForConditionalGeneration; None as the encoder's.
            decoder_position_embedding_type None is `none`, decoder_window None is 128.
        context_projection, context_k, context_sharing: how that decoder shortens the encoder's
            output. None: `full` with projection="full", else `dynamic`; num_slots rows.
        share_embeddings: whether its encoder and decoder have one table.
        pooling: what a sequence is classified by: cls (its first token), mean or max.
        feature_size: inputs are vectors of this size, given as `inputs_embeds` and projected to
            hidden_size; there is no table of words then.
        label_smoothing: of the language models, in training.
        loss_chunk: for how many positions at a time the logits are made for a loss; 0 for all.
        return_logits: whether language models return logits beside a loss; None does in
            evaluation and not in training.

    An unknown argument is an error. An attribute that is set later (`config.note = "v2"`) is kept:
    it is saved, with its name under `custom_attributes`, and loaded again. Its value must be JSON.

    transformers' chunk_size_feed_forward changes nothing: rows are worked on in blocks anyway.

    """

    model_type: ClassVar[str] = "linformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    activation_dropout: float | int = 0.0
    dropout_kind: str = "rows"
    max_position_embeddings: int = 512
    position_embedding_type: str | None = None
    neighbours: int = 0
    moving_average: bool = False
    type_vocab_size: int = 2
    embedding_norm: bool | None = None
    norm: str = "pre"
    final_norm: bool = True
    layer_norm_eps: float = 1e-5
    bias: bool = True
    qkv_bias: bool | None = None
    initializer_range: float = 0.02
    embedding_size: int | None = None
    pooler: bool = False
    lm_transform: bool = True
    lm_act: str | None = None

    k: int | list[int] | None = 256
    projection: str = "linear"
    sharing: str = "layerwise"
    window: int | None = None
    global_tokens: int = 0
    full_layers: list[int] | None = None
    keep_scale: bool = True
    projection_bias: bool = False
    plan: dict[str, str] | None = None

    causal_attention: str | None = None
    num_slots: int = 64
    rotary: float | int = 0.5

    decoder_vocab_size: int | None = None
    decoder_hidden_size: int | None = None
    decoder_num_hidden_layers: int | None = None
    decoder_num_attention_heads: int | None = None
    decoder_num_key_value_heads: int | None = None
    decoder_head_dim: int | None = None
    decoder_intermediate_size: int | None = None
    decoder_position_embedding_type: str | None = None
    decoder_window: int | None = None
    context_projection: str | None = None
    context_k: int | None = None
    context_sharing: str = "kv"
    share_embeddings: bool = True

    pooling: str = "cls"
    classifier_dropout: float | int | None = None
    classifier_act: str = "tanh"
    feature_size: int | None = None
    label_smoothing: float | int = 0.0
    loss_chunk: int = 512
    return_logits: bool | None = None

    is_decoder: bool = False
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **others: Any) -> None:
        """Called with whatever is no field."""
        custom = others.pop(CUSTOM, [])
        RULES["architectures"](CUSTOM, custom)
        unknown = [name for name in self._unknown(others) if name not in custom]
        if unknown:
            raise TypeError(self._about_unknown(unknown))
        for name in others.keys() & RULES.keys():
            RULES[name](name, others[name])
        super().__post_init__(**others)
        check_fit(self)
        try:
            self.validate()
        except StrictDataclassError as error:
            raise ValueError(_one_line(error)) from error

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RULES:
            RULES[name](name, value)
        if name == CUSTOM:
            raise AttributeError(
                f"{CUSTOM} is a list that save_pretrained makes. Use another name."
            )
        try:
            super().__setattr__(name, value)
        except StrictDataclassError as error:
            raise TypeError(_one_line(error)) from error

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "LinformerConfig":
        """A config as `to_dict` or a config.json has it: whole.

        A key that is missing would silently take a default, so it is refused. Whatever is wrong
        with the values is a ValueError.
        """
        if not isinstance(config_dict, dict):
            raise ValueError(f"a configuration must be a dictionary: got {shown(config_dict)}.")
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(
                f"this is the configuration of another model: got model_type={kind!r}, not "
                f"{cls.model_type!r}."
            )
        config_dict = _LATER_KEYS | _with_window_keys(config_dict)
        missing = [name for name in own_fields() if name not in config_dict]
        if missing:
            raise ValueError(
                f"the configuration lacks {listed(missing, form=repr)}: it was "
                "written by another version of linformer-kit "
                f"({_written_by(config_dict)}), or by hand. Add what is missing to its "
                "config.json, or make a LinformerConfig of the values you know, which takes "
                "defaults for the others."
            )
        changed = any(name in RULES for name in kwargs)
        try:
            made = super().from_dict(dict(config_dict), **kwargs)
            if changed:
                check_fit(made[0] if isinstance(made, tuple) else made)
        except TypeError as error:
            raise ValueError(str(error)) from error
        return made

    @classmethod
    def from_json_file(cls, json_file: Any) -> "LinformerConfig":
        return cls.from_dict(cls._dict_from_json_file(json_file))

    @classmethod
    def _dict_from_json_file(cls, json_file: Any) -> dict[str, Any]:
        try:
            read = super()._dict_from_json_file(json_file)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"{json_file} is not valid JSON: {reason}.") from error
        if not isinstance(read, dict):
            raise ValueError(f"{json_file} must hold a JSON object: got {shown(read)}.")
        return read

    def to_dict(self) -> dict[str, Any]:
        """All values; the names of custom attributes stand under `custom_attributes`."""
        values: dict[str, Any] = super().to_dict()
        custom = self._unknown(vars(self))
        return values | {CUSTOM: custom} if custom else values

    def to_json_file(self, json_file_path: Any, use_diff: bool = True) -> None:
        """Write the configuration; what JSON cannot hold is refused before the file is touched."""
        for name in self._unknown(vars(self)):
            try:
                json.dumps(getattr(self, name))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"the attribute {name!r} of a configuration is saved, so it must be JSON: got "
                    f"{shown(getattr(self, name))}. Delete it before saving, or make it a number, "
                    "a string, a list or a dictionary."
                ) from error
        super().to_json_file(json_file_path, use_diff)

    def get_text_config(
        self, decoder: bool | None = None, encoder: bool | None = None
    ) -> "LinformerConfig":
        """The configuration of one end of the model, for transformers' own use."""
        if self.is_encoder_decoder and decoder and not encoder:
            return self.of_decoder()
        return self

    def encoder_arguments(self) -> dict[str, Any]:
        """The arguments of the core's encoder. Positions are the embeddings' part."""
        full = self.projection == "full"
        return {
            "max_length": self.max_position_embeddings,
            "k": self.k,
            "projection": self.projection,
            "sharing": self.sharing,
            "window": 0 if full else self.window or 0,
            "global_tokens": 0 if full else self.global_tokens,
            "full_layers": self.full_layers or (),
            "keep_scale": self.keep_scale,
            "projection_bias": self.projection_bias,
            "neighbours": self.neighbours,
            "moving_average": self.moving_average,
            "final_norm": self.final_norm,
            "dropout_kind": self.dropout_kind,
            "plan": None if self.plan is None else Plan(**self.plan),
            **self._layer_arguments(),
        }

    def decoder_arguments(self, *, context_dim: int | None = None) -> dict[str, Any]:
        """The arguments of the core's decoder; with `context_dim` it attends to a context."""
        full = self.projection == "full"
        causal = self.causal_attention or ("full" if full else "slots")
        return {
            "attention": causal,
            "k": self.num_slots,
            "window": _CAUSAL_WINDOW if self.window is None else self.window,
            "rotary": self.rotary,
            "cross_attention": context_dim is not None,
            "context_projection": self.context_projection or ("full" if full else "dynamic"),
            "context_k": self.context_k,
            "context_max_length": self.max_position_embeddings,
            "context_sharing": self.context_sharing,
            "context_dim": context_dim,
            **self._layer_arguments(),
        }

    def of_encoder(self) -> "LinformerConfig":
        """The configuration of the encoder in a model that has a decoder too."""
        return self._changed(is_encoder_decoder=False, is_decoder=False)

    def of_decoder(self) -> "LinformerConfig":
        """The configuration of the decoder in a model that has an encoder too: a causal model's."""
        own = {
            name: self.of_decoder_value(name)
            for name in (
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "intermediate_size",
            )
        }
        positions = self.decoder_position_embedding_type
        return self._changed(
            **own,
            position_embedding_type=positions,
            window=self.decoder_window,
            global_tokens=0,
            full_layers=None,
            embedding_size=None,
            pooler=False,
            final_norm=True,
            projection_bias=False,
            neighbours=0,
            moving_average=False,
            feature_size=None,
            type_vocab_size=0,
            is_encoder_decoder=False,
            is_decoder=True,
        )

    def of_causal(self) -> "LinformerConfig":
        """The configuration of a causal model."""
        return self._changed(is_encoder_decoder=False, is_decoder=True)

    def of_both(self) -> "LinformerConfig":
        """The configuration of a model with encoder and decoder."""
        return self._changed(is_encoder_decoder=True, is_decoder=False)

    @property
    def positions(self) -> Positions:
        """The kind of positions that the embeddings add."""
        usual = "none" if self.is_decoder else "learned"
        return self.position_embedding_type or usual  # type: ignore[return-value]

    @property
    def embedding_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def norms_embeddings(self) -> bool:
        return self.norm == "post" if self.embedding_norm is None else self.embedding_norm

    def of_decoder_value(self, name: str) -> Any:
        own = getattr(self, f"decoder_{name}")
        return getattr(self, name) if own is None else own

    def _changed(self, **values: Any) -> "LinformerConfig":
        return type(self).from_dict(self.to_dict() | values)

    def _layer_arguments(self) -> dict[str, Any]:
        """What the core's encoder and decoder call by one name."""
        return {
            "dim": self.hidden_size,
            "depth": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
            "num_kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "ff_dim": self.intermediate_size,
            "norm": self.norm,
            "norm_eps": self.layer_norm_eps,
            "activation": self.hidden_act,
            "dropout": self.hidden_dropout_prob,
            "attention_dropout": self.attention_probs_dropout_prob,
            "activation_dropout": self.activation_dropout,
            "bias": self.bias,
            "qkv_bias": self.qkv_bias,
        }

    @property
    def shares_embeddings(self) -> bool:
        """Whether an encoder and a decoder have one table; an encoder of features has none."""
        return self.share_embeddings and self.feature_size is None

    def _unknown(self, names: Iterable[str]) -> list[str]:
        """Those that are neither fields nor transformers' own."""
        known = {field.name for field in dataclasses.fields(self)} | _OF_TRANSFORMERS
        return [name for name in names if name not in known and not name.startswith("_")]

    def _about_unknown(self, names: list[str]) -> str:
        known = [field.name for field in dataclasses.fields(self)]
        said = unknown_names(type(self).__name__, names, known, renamed=CONFIG_NAMES)
        generation = [n for n in names if n in GenerationConfig._get_default_generation_params()]
        if generation:
            return f"{said} {generation[0]} belongs to generation: set model.generation_config."
        return (
            f"{said} If it stands in a config.json, that was written by another version of "
            "linformer-kit, which has to read it; to keep an attribute of your own, set it after "
            "the configuration is made."
        )


def own_fields() -> list[str]:
    """The names that make a LinformerConfig more than a PreTrainedConfig."""
    general = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    return [f.name for f in dataclasses.fields(LinformerConfig) if f.name not in general]


def _with_window_keys(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a file from before encoders had a window: `window` was the decoder's alone."""
    if "global_tokens" in values or "window" not in values:
        return values
    window = values["window"]
    if values.get("is_decoder"):
        return values | {"global_tokens": 0, "decoder_window": None}
    decoder_window = window if values.get("is_encoder_decoder") else None
    return values | {"window": 0, "global_tokens": 0, "decoder_window": decoder_window}


def _written_by(config_dict: dict[str, Any]) -> str:
    return f"with transformers {config_dict.get('transformers_version', 'of unknown version')}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
