"""A text that is written slice by slice, between other requests.

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

from ..export.runtime import OnnxDecoder
from ..generation import Decoder, ShownText, choice, write_tokens
from ..models.cache import LinformerCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["OnnxDecoder", "Sampling", "TorchDecoder", "Writing"]

PROMPT_SLICE = 4096  # tokens of a prompt that are read in one step
FINISHED = ("stop", "length")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 takes the likeliest."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class SlicedDecoder(Decoder, Protocol):
    slice: int  # tokens of a prompt that are read in one step


class TorchDecoder:
    """A causal model of this package and its state."""

    slice = PROMPT_SLICE

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache = LinformerCache()

    @torch.no_grad()
    def read(self, ids: Array) -> Array:
        tokens = torch.from_numpy(ids).to(self.model.device)
        made = self.model(
            input_ids=tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        logits: Array = made.logits[:, -1].float().cpu().numpy()
        return logits


class Writing:
    """A prompt that is being continued."""

    def __init__(
        self,
        decoder: SlicedDecoder,
        tokenizer: Any,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Sequence[int],
    ) -> None:
        self.decoder = decoder
        self.sampling = sampling
        self.ends = list(ends)
        self.written = 0
        self.finish_reason: str | None = None
        self._unread = list(prompt)
        self._tokens: Iterator[Array] = iter(())
        self._text = ShownText(tokenizer, prompt, sampling.stop)
        seed = secrets.randbits(31) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator().manual_seed(seed)

    def advance(self, emit: Callable[[str], None], pause: Callable[[], bool]) -> bool:
        """Read the next slice of the prompt, or write until `pause`; whether there is more to do.

        `emit` gets each piece of text that is final.
        """
        if self._unread:
            some = np.array([self._unread[: self.decoder.slice]])
            del self._unread[: self.decoder.slice]
            logits = self.decoder.read(some)
            sampling = self.sampling
            self._tokens = write_tokens(
                self.decoder,
                logits,
                choose=choice(sampling.temperature, self._draw, sampling.top_p),
                ends=self.ends,
                most=sampling.max_new_tokens,
            )
            return True
        while self.finish_reason is None:
            self._write(int(next(self._tokens)[0]), emit)
            if pause():
                break
        return self.finish_reason is None

    def _write(self, token: int, emit: Callable[[str], None]) -> None:
        self.written += 1
        if token in self.ends:
            self.finish_reason = "stop"
            text = self._text.rest()
        else:
            text = self._text.add(token)
            if self._text.stopped:
                self.finish_reason = "stop"
            elif self.written >= self.sampling.max_new_tokens:
                self.finish_reason = "length"
                text += self._text.rest()
        if text:
            emit(text)

    def _draw(self, likely: Array) -> Array:
        drawn = torch.multinomial(torch.from_numpy(likely), 1, generator=self._generator)
        return drawn[:, 0].numpy()
