"""A trained encoder to look into: its folder or name, its tokenizer, its attention."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .texts import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Where a run keeps its models, best first.
FOLDERS_OF_A_RUN = ("best", "last", "model")


@dataclass(frozen=True)
class TextEncoder:
    """An encoder of text that returns its attention."""

    name: str
    model: Any
    tokenizer: Any
    longest: int | None  # the most tokens it takes

    @torch.inference_mode()
    def attentions(self, piece: list[int]) -> Iterator[Tensor]:
        """The weights of each layer for one piece of text: (H, n, n), of Linformers (H, n, k)."""
        ids = torch.tensor([piece])
        found = self.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True
        ).attentions
        if not found or any(weights is None for weights in found):
            raise ValueError(
                f"{self.name} does not return its attention weights, so there is nothing to look "
                "at. Use an encoder with softmax attention, such as BERT or RoBERTa."
            )
        for weights in found:
            yield weights[0].float()


def load_encoder(name: str) -> TextEncoder:
    """A folder of Hugging Face, one of our runs, or a name of the hub."""
    transformers = _transformers()
    where = _model_folder(name)
    try:
        config = transformers.AutoConfig.from_pretrained(where)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{name} is no model that can be loaded: {first} Give a folder with config.json and "
            "model.safetensors, a run of `linformer train`, or a name of the Hugging Face hub."
        ) from None
    _check_encoder(name, config)
    model = _model(transformers, where)
    tokenizer = transformers.AutoTokenizer.from_pretrained(where)
    return TextEncoder(name, model.eval(), tokenizer, _longest(config, tokenizer))


def _model(transformers: Any, where: str) -> Any:
    """The encoder alone: that the file holds a head too is no news, that it lacks a weight is."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, info = transformers.AutoModel.from_pretrained(
            where, attn_implementation="eager", use_safetensors=True, output_loading_info=True
        )
    finally:
        logging.set_verbosity(before)
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(f"{where} lacks weights of its encoder: {', '.join(missing[:3])}.")
    return model


def pieces(encoder: TextEncoder, texts: Iterable[str], length: int) -> Iterator[list[int]]:
    """The texts as token ids, in pieces of exactly `length` with the model's own ends."""
    if encoder.longest is not None and length > encoder.longest:
        raise ValueError(
            f"{encoder.name} takes at most {encoder.longest} tokens: got --length {length}. "
            "Use a smaller one."
        )
    tokenizer = encoder.tokenizer
    inside = length - tokenizer.num_special_tokens_to_add()
    if inside < 1:
        raise ValueError(f"--length {length} leaves no room for text. Use a larger one.")
    waiting: list[int] = []
    total = 0
    for text in texts:
        for line in lines_of(text):
            found = tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"]
            total += len(found)
            waiting += found
            while len(waiting) >= inside:
                yield _with_ends(tokenizer, waiting[:inside])
                del waiting[:inside]
    if total < inside:
        raise ValueError(
            f"the text has {total} tokens, and one piece of --length {length} needs {inside}. "
            "Give more text, or a smaller --length."
        )


def _transformers() -> Any:
    """The library, with the models of this package known to it by name."""
    try:
        library = importlib.import_module("transformers")
        importlib.import_module("linformer_kit.models")
    except ModuleNotFoundError as error:
        if error.name == "linformer_kit.models":
            return library
        raise ValueError(
            f"this needs {error.name}, which is not installed: pip install 'linformer-kit[report]'"
        ) from None
    return library


def _with_ends(tokenizer: Any, ids: list[int]) -> list[int]:
    if hasattr(tokenizer, "build_inputs_with_special_tokens"):
        whole: list[int] = tokenizer.build_inputs_with_special_tokens(ids)
        return whole
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    return [*([] if first is None else [first]), *ids, *([] if last is None else [last])]


def _model_folder(name: str) -> str:
    folder = Path(name)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return name
    for part in FOLDERS_OF_A_RUN:
        if (folder / part / "config.json").is_file():
            return str(folder / part)
    raise ValueError(
        f"{name} holds no model: neither config.json nor {' or '.join(FOLDERS_OF_A_RUN)} with one. "
        "Give the folder of a run or of a saved model."
    )


def _check_encoder(name: str, config: Any) -> None:
    library = _transformers()
    masked = type(config) in library.MODEL_FOR_MASKED_LM_MAPPING
    kind = config.model_type
    architectures = getattr(config, "architectures", None) or []
    if getattr(config, "is_encoder_decoder", False):
        what = "an encoder with a decoder"
    elif (
        getattr(config, "is_decoder", False)
        or any("CausalLM" in one for one in architectures)
        or (not masked and type(config) in library.MODEL_FOR_CAUSAL_LM_MAPPING)
    ):
        what = "a decoder: each token sees only those before it"
    elif not masked:
        what = "not an encoder of text"
    else:
        return
    raise ValueError(
        f"{name} is {what} (model_type {kind!r}), and this looks into encoders. Use one of the "
        "kind of BERT, RoBERTa or this package's LinformerForMaskedLM."
    )


def _longest(config: Any, tokenizer: Any) -> int | None:
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return None
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "longformer"):
        return int(positions) - int(tokenizer.pad_token_id or 0) - 1  # positions start behind it
    return int(positions)
