"""Load a trained encoder with its tokenizer, and compute its attention weights."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...config import limits
from ...errors import UserError, user_input
from ...hub import require_hub
from ...machine_memory import require_memory
from ...measure import quantities
from ...models.text_input import Frame, longest
from ...runs.models import model_folder
from .texts import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# The most that an entry of a configuration may say, by its name.
LARGEST = (
    (r"layers?$|blocks?$|depths?$", limits.LAYERS),
    (r"vocab", limits.VOCABULARY),
    (r"position", limits.LENGTH),
    (r"labels$|size$|dim$|d_model$|heads$", limits.WIDTH),
)


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
        ids = torch.tensor([piece], device=self.model.device)
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
    """Load a Hugging Face folder, a run of `linformer train`, or a model of the hub."""
    transformers = _transformers()
    where = _model_folder(name)
    from ...models.load import check_safetensors, check_weights, quiet

    remedy = (
        "Give a folder with config.json and model.safetensors, a run of `linformer train`, or a "
        "name of the Hugging Face hub."
    )
    require_hub(where, "config.json")
    if Path(where).is_dir():  # transformers takes what may not be read for missing
        with user_input(f"cannot read {Path(where) / 'config.json'}"):
            (Path(where) / "config.json").open("rb").close()
    with user_input(f"{name} is no model that can be loaded", remedy=remedy), quiet():
        check_sizes(transformers.PreTrainedConfig.get_config_dict(where)[0], name)
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=False)
    _check_encoder(name, config)
    if Path(where).is_dir():
        check_safetensors(Path(where))
    with user_input(f"cannot load the model {name}", remedy=remedy), quiet():
        model, info = transformers.AutoModel.from_pretrained(
            where,
            attn_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    check_weights(model, info, name, optional=("pooler.",))  # a file may contain a head too
    with user_input(f"cannot load the tokenizer of {name}"), quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    return TextEncoder(name, model.eval(), tokenizer, longest(config))


def check_sizes(config: Any, where: object) -> None:
    """Refuse a configuration, as JSON, with sizes that no model has: building it never ends."""
    for name, value in config.items():
        if isinstance(value, dict):
            check_sizes(value, where)
        most = next((most for pattern, most in LARGEST if re.search(pattern, name)), None)
        if most is not None and isinstance(value, int) and value > most:
            raise UserError(
                f"{where} cannot be a model: {name} must be at most {most:,}, got {value:,}. "
                "Correct its config.json."
            )


def pieces(encoder: TextEncoder, texts: Iterable[str], length: int) -> Iterator[list[int]]:
    """The texts as token ids, in pieces of exactly `length` including special tokens."""
    if encoder.longest is not None and length > encoder.longest:
        raise ValueError(
            f"{encoder.name} takes at most {encoder.longest} tokens: got --length {length}. "
            "Use a smaller one."
        )
    tokenizer = encoder.tokenizer
    frame = Frame.of(tokenizer)
    inside = length - frame.size
    if inside < 1:
        raise ValueError(f"--length {length} leaves no room for text. Use a larger one.")
    config = encoder.model.config
    if not hasattr(config, "k"):
        heads = config.num_hidden_layers * config.num_attention_heads
        require_memory(
            f"the attention of {heads} heads at --length {length:,}",
            4 * heads * length**2,
            remedy="Use a smaller one.",
        )
    waiting: list[int] = []
    total = 0
    for text in texts:
        for line in lines_of(text):
            found = tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"]
            total += len(found)
            waiting += found
            while len(waiting) >= inside:
                yield frame(waiting[:inside])
                del waiting[:inside]
    if total < inside:
        raise ValueError(
            f"the text has {quantities.count(total, 'token')}, and one piece of --length "
            f"{length} needs {inside}. "
            "Give more text, or a smaller --length."
        )


def _transformers() -> Any:
    """transformers, with the models of this package registered."""
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


def _model_folder(name: str) -> str:
    """The folder of a model, of a run's best model, or a name of the hub as it is."""
    folder = Path(name)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return name
    if (folder / "config.yaml").is_file():
        return str(model_folder(folder))
    raise UserError(
        f"{name} holds no model: neither config.json nor a run's config.yaml. Give the folder of a "
        "run or of a saved model."
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
