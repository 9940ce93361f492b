"""LinformerConfig: one flat configuration for every model.

Names are BERT's where BERT has the thing; the rest are the core's. Values are checked when a config
is made: their types by `strict`, everything else by building the core's modules without memory, so
that what the core refuses, the config refuses.
"""

import dataclasses  # no postponed annotations here: `strict` reads them to check types
import difflib
import re
from typing import Any, ClassVar, get_args

import torch
from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig

from ..core import checks
from ..core.decoder import LinformerDecoder
from ..core.encoder import LinformerEncoder
from ..core.plan import Plan
from ..core.positions import Positions, build_positions

POOLINGS = ("cls", "mean", "max")

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
# The core's name for a thing: ours. What it says of a wrong value is said in our words.
_OUR_NAMES = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "ff_dim": "intermediate_size",
    "activation": "hidden_act",
    "max_length": "max_position_embeddings",
    "attention": "causal_attention",
}


@strict
class LinformerConfig(PreTrainedConfig):
    """What a Linformer is made of. `projection="full"` makes every model the vanilla Transformer.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size,
            hidden_act, hidden_dropout_prob, attention_probs_dropout_prob, type_vocab_size,
            initializer_range, layer_norm_eps, classifier_dropout, use_cache, tie_word_embeddings
            and token ids: as in BERT. hidden_act is gelu, relu or swiglu.
        max_position_embeddings: the longest input of an encoder, the core's max_length.
        num_key_value_heads: fewer than heads lets groups of heads share keys and values.
        head_dim: by default hidden_size // num_attention_heads.
        activation_dropout, dropout_kind, norm, bias, qkv_bias, keep_scale: as in the core.
        position_embedding_type: learned, sinusoidal or none, added to the input. None is `learned`
            in an encoder and `none` in a causal model, whose heads are rotated by position.
        neighbours: over how many tokens, an odd number, a convolution adds to each row of an
            encoder's input what stands beside it; 0 has none. See `LinformerEncoder`.
        embedding_norm: a norm after the embeddings; None has one with norm="post", as BERT.
        k, projection, sharing: of the encoder, see `LinformerAttention`. k may be a list.
        plan: an order of multiplication to use always, {"shorten": ..., "attend": ...}.
        causal_attention: slots or full, in causal models and decoders; None is `full` with
            projection="full", else `slots`.
        num_slots, window, rotary: of the causal attention, k, window and rotary in the core.
        decoder_*: of the decoder of LinformerForConditionalGeneration; None as the encoder's.
            decoder_position_embedding_type None is `none`.
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
    type_vocab_size: int = 2
    embedding_norm: bool | None = None
    norm: str = "pre"
    layer_norm_eps: float = 1e-5
    bias: bool = True
    qkv_bias: bool | None = None
    initializer_range: float = 0.02

    k: int | list[int] | None = 256
    projection: str = "linear"
    sharing: str = "layerwise"
    keep_scale: bool = True
    plan: dict[str, str] | None = None

    causal_attention: str | None = None
    num_slots: int = 64
    window: int = 128
    rotary: float | int = 0.5

    decoder_vocab_size: int | None = None
    decoder_hidden_size: int | None = None
    decoder_num_hidden_layers: int | None = None
    decoder_num_attention_heads: int | None = None
    decoder_num_key_value_heads: int | None = None
    decoder_head_dim: int | None = None
    decoder_intermediate_size: int | None = None
    decoder_position_embedding_type: str | None = None
    context_projection: str | None = None
    context_k: int | None = None
    context_sharing: str = "kv"
    share_embeddings: bool = True

    pooling: str = "cls"
    classifier_dropout: float | int | None = None
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
        for name in others:
            if name not in _OF_TRANSFORMERS and not name.startswith("_"):
                raise ValueError(self._about_unknown(name, others[name]))
        super().__post_init__(**others)
        self._check()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "LinformerConfig":
        """A config as `to_dict` or a config.json has it: whole.

        A key that is missing would silently take a default, so it is refused.
        """
        missing = [name for name in own_fields() if name not in config_dict]
        if missing:
            raise ValueError(
                f"the configuration lacks {', '.join(map(repr, missing))}: it was written by "
                f"another version of linformer-kit ({_written_by(config_dict)}), or by hand. Add "
                "what is missing to its config.json, or make a LinformerConfig of the values you "
                "know, which takes defaults for the others."
            )
        return super().from_dict(config_dict, **kwargs)

    def get_text_config(
        self, decoder: bool | None = None, encoder: bool | None = None
    ) -> "LinformerConfig":
        """The configuration of one end of the model, for transformers' own use."""
        if self.is_encoder_decoder and decoder and not encoder:
            return self.of_decoder()
        return self

    def encoder_arguments(self) -> dict[str, Any]:
        """The arguments of the core's encoder. Positions are the embeddings' part."""
        return {
            "max_length": self.max_position_embeddings,
            "k": self.k,
            "projection": self.projection,
            "sharing": self.sharing,
            "keep_scale": self.keep_scale,
            "neighbours": self.neighbours,
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
            "window": self.window,
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
            name: self._of_decoder(name)
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
            neighbours=0,
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
    def norms_embeddings(self) -> bool:
        return self.norm == "post" if self.embedding_norm is None else self.embedding_norm

    def _of_decoder(self, name: str) -> Any:
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

    def _check(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_position_embeddings"):
            checks.positive(name, getattr(self, name))
        for name in ("decoder_vocab_size", "feature_size"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        for name in ("type_vocab_size", "loss_chunk"):
            checks.whole(name, getattr(self, name))
        for name in (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "activation_dropout",
            "label_smoothing",
        ):
            checks.probability(name, getattr(self, name))
        if self.classifier_dropout is not None:
            checks.probability("classifier_dropout", self.classifier_dropout)
        checks.one_of("pooling", self.pooling, POOLINGS)
        for name in ("position_embedding_type", "decoder_position_embedding_type"):
            if getattr(self, name) is not None:
                checks.one_of(name, getattr(self, name), get_args(Positions))
        if self.plan is not None and set(self.plan) != {"shorten", "attend"}:
            raise ValueError(
                "plan must say how to shorten and how to attend, "
                f'{{"shorten": "input", "attend": "fused"}}: got {self.plan}.'
            )
        if self.is_decoder and self.neighbours:
            raise ValueError(
                "neighbours are those on both sides, and a causal model must not see the later "
                f"ones: got neighbours={self.neighbours}. Leave it 0: the window shows a token "
                "those before it."
            )
        self._check_embeddings()
        self._check_core()

    def _check_embeddings(self) -> None:
        if self.is_decoder and self.feature_size is not None:
            raise ValueError(
                f"a causal model reads tokens: got feature_size={self.feature_size}. Leave it "
                "None, or use an encoder."
            )
        sizes = {
            name: self._of_decoder(name) == getattr(self, name)
            for name in ("vocab_size", "hidden_size")
        }
        if self.is_encoder_decoder and self.shares_embeddings and not all(sizes.values()):
            odd = next(name for name, same in sizes.items() if not same)
            raise ValueError(
                f"one table serves encoder and decoder only if they have one {odd}: got "
                f"{getattr(self, odd)} and decoder_{odd}={self._of_decoder(odd)}. Pass "
                "share_embeddings=False."
            )

    @property
    def shares_embeddings(self) -> bool:
        """Whether an encoder and a decoder have one table; an encoder of features has none."""
        return self.share_embeddings and self.feature_size is None

    def _check_core(self) -> None:
        """Build what the models are built of, on no device: the core knows what it refuses."""
        checks.positive("num_hidden_layers", self.num_hidden_layers)
        try:
            with torch.device("meta"):
                build_positions(self.positions, self.max_position_embeddings, self.hidden_size)
                if self.is_decoder:
                    LinformerDecoder(**self.decoder_arguments() | {"depth": 1})
                else:
                    LinformerEncoder(**self.encoder_arguments() | self._different_layers())
                if self.is_encoder_decoder:
                    arguments = self.of_decoder().decoder_arguments(context_dim=self.hidden_size)
                    LinformerDecoder(**arguments | {"depth": 1})
        except (TypeError, ValueError) as error:
            names = {**_OUR_NAMES, "k": "num_slots"} if self.is_decoder else _OUR_NAMES
            words = re.compile(rf"\b({'|'.join(names)})\b")
            raise type(error)(words.sub(lambda found: names[found[0]], str(error))) from error

    def _different_layers(self) -> dict[str, Any]:
        """One layer for each k there is: the others are the same."""
        if not isinstance(self.k, list):
            return {"depth": 1}
        if len(self.k) != self.num_hidden_layers:
            raise ValueError(
                f"k must be one number or one for each of the {self.num_hidden_layers} layers: got "
                f"{len(self.k)}, {self.k}."
            )
        several = list(dict.fromkeys(self.k))
        return {"depth": len(several), "k": several}

    def _about_unknown(self, name: str, value: object) -> str:
        received = f"LinformerConfig has no {name!r}: got {name}={value!r}."
        if name in GenerationConfig._get_default_generation_params():
            return f"{received} It belongs to generation: set it in model.generation_config."
        near = difflib.get_close_matches(name, own_fields(), n=1)
        if near:
            return f"{received} Did you mean {near[0]!r}?"
        return (
            f"{received} If it stands in a config.json, that was written by another version of "
            "linformer-kit, which has to read it."
        )


def own_fields() -> list[str]:
    """The names that make a LinformerConfig more than a PreTrainedConfig."""
    general = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    return [f.name for f in dataclasses.fields(LinformerConfig) if f.name not in general]


def _written_by(config_dict: dict[str, Any]) -> str:
    return f"with transformers {config_dict.get('transformers_version', 'of unknown version')}"
