"""A text that is written token by token, from a state that does not grow with it.

`Writing` holds what there is between two tokens: the decoder's state, the logits, the last few
tokens for decoding, and text that might be the beginning of a stop string. Its size does not depend
on how much has been written.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ..models.cache import LinformerCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..export.runtime import OnnxModel

PROMPT_SLICE = 4096  # tokens of a prompt that are read in one step
CONTEXT = 8  # tokens before a new one that its text may depend on
UNFINISHED = "\ufffd"  # what bytes decode to that are not yet a character
FINISHED = ("stop", "length")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 takes the likeliest."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Decoder(Protocol):
    """A model that generates tokens after a prompt."""

    slice: int  # tokens of a prompt that are read in one step

    def read(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits (V) after these tokens."""


class TorchDecoder:
    """A causal model of this package and its state."""

    slice = PROMPT_SLICE

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache = LinformerCache()

    @torch.no_grad()
    def read(self, ids: Sequence[int]) -> torch.Tensor:
        tokens = torch.tensor([list(ids)], device=self.model.device)
        made = self.model(
            input_ids=tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return made.logits[0, -1].float()


class OnnxDecoder:
    """An exported step and its state."""

    slice = 16  # it reads token by token

    def __init__(self, graph: OnnxModel) -> None:
        self.graph = graph
        self.state = graph.first_state(1)

    def read(self, ids: Sequence[int]) -> torch.Tensor:
        logits = np.zeros(0)
        for token in ids:
            logits, self.state = self.graph.step(np.array([token]), self.state)
        return torch.from_numpy(logits[0]).float()


class Writing:
    """A prompt that is being continued."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Any,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Sequence[int],
    ) -> None:
        self.decoder = decoder
        self.sampling = sampling
        self.ends = frozenset(ends)
        self.written = 0
        self.finish_reason: str | None = None
        self._unread = list(prompt)
        self._logits: torch.Tensor | None = None
        self._text = _NewText(tokenizer, prompt[-CONTEXT:])
        self._held = _Stops(sampling.stop)
        self._draw = torch.Generator()
        seed = secrets.randbits(31) if sampling.seed is None else sampling.seed
        self._draw.manual_seed(seed)

    def advance(self, emit: Callable[[str], None], pause: Callable[[], bool]) -> bool:
        """Read the next slice of the prompt, or write until `pause`; whether there is more to do.

        `emit` gets each piece of text that is final.
        """
        if self._unread:
            some = self._unread[: self.decoder.slice]
            del self._unread[: self.decoder.slice]
            self._logits = self.decoder.read(some)
            return True
        while self.finish_reason is None:
            self._write(emit)
            if pause():
                break
        return self.finish_reason is None

    def _write(self, emit: Callable[[str], None]) -> None:
        assert self._logits is not None
        token = self._chosen(self._logits)
        self.written += 1
        if token in self.ends:
            self.finish_reason = "stop"
            emit(self._held.add(self._text.rest()) + self._held.rest())
            return
        text = self._held.add(self._text.add(token))
        if self._held.found:
            self.finish_reason = "stop"
        elif self.written >= self.sampling.max_new_tokens:
            self.finish_reason = "length"
            text += self._held.add(self._text.rest())
            text += self._held.rest()
        if text:
            emit(text)
        if self.finish_reason is None:
            self._logits = self.decoder.read([token])

    def _chosen(self, logits: torch.Tensor) -> int:
        if self.sampling.temperature == 0:
            return int(logits.argmax())
        likely = (logits.double() / self.sampling.temperature).softmax(-1)
        if self.sampling.top_p < 1:
            values, order = likely.sort(descending=True, stable=True)
            outside = values.cumsum(0) - values >= self.sampling.top_p
            outside[0] = False  # the likeliest stays, even with top_p = 0
            likely = torch.zeros_like(likely).scatter(0, order, values.masked_fill(outside, 0.0))
        return int(torch.multinomial(likely, 1, generator=self._draw))


class _NewText:
    """The text that each token adds: the difference that it makes after the tokens before it."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before)
        self._shown = self._decoded()

    def _decoded(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decoded()
        if text.endswith(UNFINISHED) and len(self._tokens) < 4 * CONTEXT:
            return ""
        new = text[len(self._shown) :]
        self._shown = text
        if len(self._tokens) >= 2 * CONTEXT:
            self._tokens = self._tokens[-CONTEXT:]
            self._shown = self._decoded()
        return new

    def rest(self) -> str:
        """What was kept back because it is no whole character."""
        text = self._decoded()
        new = text[len(self._shown) :]
        self._shown = text
        return new


class _Stops:
    """Text up to the first stop string; what might be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        if self.found:
            return ""
        text = self._held + text
        places = [text.find(stop) for stop in self._stops if stop in text]
        if places:
            self._held, self.found = "", True
            return text[: min(places)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that begins a stop string."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
