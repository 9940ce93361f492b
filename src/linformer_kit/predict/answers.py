"""Answers of a run's model to texts, one at a time as they come."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError, user_input
from ..evaluate.translations import room
from ..models.load import load_pretrained, load_tokenizer
from ..training.build import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ..config.schema import RunConfig, Task
    from ..runs.folder import RunFolder


@dataclass(frozen=True)
class Options:
    """How to answer."""

    top: int = 5
    max_new_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """What a model says to one input."""

    given: str
    answers: list[dict[str, Any]]
    problem: str | None = None  # why there is no answer

    def values(self) -> dict[str, Any]:
        """For programs."""
        if self.problem is not None:
            return {"input": self.given, "error": self.problem}
        return {"input": self.given, "answers": self.answers}

    def text(self) -> str:
        """For people."""
        lines = []
        for answer in self.answers:
            score = f"{answer['score']:.3f}  " if "score" in answer else ""
            lines.append(score + answer["text"])
        return "\n".join(lines)


@torch.no_grad()
def predict_texts(
    folder: RunFolder,
    texts: Iterable[str],
    *,
    which: str = "best",
    options: Options,
    onnx: Path | None = None,
) -> Iterator[Answer]:
    """Answers in the order of the texts. For features a text is a JSON list of numbers.

    An input that cannot be answered gives an answer with its `problem`, and the others go on.
    `which` is best, last or the step of a checkpoint. `onnx` is an exported file of this run's
    model, which then answers in its place.
    """
    config = folder.config()
    path = folder.model_folder(which)
    model = _model(MODELS[config.task], path, onnx)
    answer = _ANSWERS[config.task]
    tokenizer = load_tokenizer(path)
    if tokenizer is None and getattr(model.config, "feature_size", None) is None:
        raise UserError(f"{path} has no tokenizer.json, which its model needs.")
    torch.manual_seed(options.seed)
    for text in texts:
        try:
            if not text.strip():
                raise UserError("the input is empty.")
            yield Answer(text, answer(model, tokenizer, text, config, options))
        except UserError as error:
            yield Answer(text, [], str(error))


def _model(kind: Any, path: Path, onnx: Path | None) -> Any:
    if onnx is not None:
        from .onnx import OnnxInstead

        with user_input(f"cannot read {path / 'config.json'}"):
            config = kind.config_class.from_pretrained(
                path, trust_remote_code=False, local_files_only=True
            )
        with user_input(f"cannot use {onnx}"):
            return OnnxInstead(onnx, kind, config)
    model = load_pretrained(kind, path).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _fill_mask(
    model: Any, tokenizer: Any, text: str, config: RunConfig, options: Options
) -> list[dict[str, Any]]:
    batch = _encode(model, tokenizer, text, config)
    places = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    if not places:
        raise UserError(f"the text must hold {tokenizer.mask_token}: got {_short(text)}.")
    likely = model(**batch).logits[0, places].float().softmax(-1)  # (masks, V)
    answers = []
    for number, place in enumerate(places):
        scores, ids = likely[number].topk(min(options.top, likely.shape[-1]))
        for score, token in zip(scores.tolist(), ids.tolist(), strict=True):
            filled = batch["input_ids"][0].clone()
            filled[place] = token
            answers.append(
                {
                    "token": tokenizer.decode([token]),
                    "score": score,
                    "text": _without_frame(tokenizer, filled.tolist()),
                }
            )
    return answers


def _classify(
    model: Any, tokenizer: Any, text: str, config: RunConfig, options: Options
) -> list[dict[str, Any]]:
    if tokenizer is None:
        batch = {"inputs_embeds": _features(text, model.config.feature_size).to(model.device)}
    else:
        batch = _encode(model, tokenizer, text, config)
    likely = model(**batch).logits[0].float().softmax(-1)
    scores, ids = likely.topk(min(options.top, likely.shape[-1]))
    names = model.config.id2label
    return [
        {"text": names[label], "score": score}
        for score, label in zip(scores.tolist(), ids.tolist(), strict=True)
    ]


def _go_on(
    model: Any, tokenizer: Any, text: str, config: RunConfig, options: Options
) -> list[dict[str, Any]]:
    batch = _encode(model, tokenizer, text, config, cut=False)
    drawn = options.temperature > 0
    made = model.generate(
        **batch,
        max_new_tokens=room(
            model,
            options.max_new_tokens or config.evaluate.max_new_tokens,
            used=batch["input_ids"].shape[1],
        ),
        do_sample=drawn,
        **({"temperature": options.temperature} if drawn else {}),
    )
    return [{"text": tokenizer.decode(made[0], skip_special_tokens=True)}]


def _translate(
    model: Any, tokenizer: Any, text: str, config: RunConfig, options: Options
) -> list[dict[str, Any]]:
    made = model.generate(
        **_encode(model, tokenizer, text, config),
        num_beams=config.evaluate.beams,
        length_penalty=config.evaluate.length_penalty,
        max_new_tokens=room(model, options.max_new_tokens or config.evaluate.max_new_tokens),
        do_sample=False,
    )
    return [{"text": tokenizer.decode(made[0], skip_special_tokens=True).strip()}]


_ANSWERS: dict[Task, Callable[[Any, Any, str, RunConfig, Options], list[dict[str, Any]]]] = {
    "mlm": _fill_mask,
    "classify": _classify,
    "clm": _go_on,
    "translate": _translate,
}


def _encode(
    model: Any, tokenizer: Any, text: str, config: RunConfig, *, cut: bool = True
) -> dict[str, torch.Tensor]:
    batch = tokenizer(text, return_tensors="pt")
    length = batch["input_ids"].shape[1]
    if cut and length > config.data.max_length:
        raise UserError(
            f"a text must have at most data.max_length = {config.data.max_length} tokens: "
            f"got {length}, {_short(text)}."
        )
    return {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}


def _features(text: str, width: int) -> torch.Tensor:
    rule = f"the input must be a JSON list of positions with {width} finite number(s) each"
    with user_input(f"{rule}: got {_short(text)}"):
        values = torch.tensor(json.loads(text), dtype=torch.float32)
        values = values.reshape(1, -1, width)
        if not values.numel() or not bool(torch.isfinite(values).all()):
            raise ValueError("it is empty or not finite")
        return values


def _without_frame(tokenizer: Any, ids: list[int]) -> str:
    """The text with its masks, without beginning and end."""
    frame = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return str(tokenizer.decode([token for token in ids if token not in frame]))


def _short(text: str) -> str:
    return repr(text if len(text) < 60 else text[:57] + "...")
