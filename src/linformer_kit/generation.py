"""Texts that are written token by token, by any decoder: one loop for all, and beams.

`write_tokens` gives each token as soon as it is chosen, so a text is shown while it is written, and
one that nobody reads on is not continued. `ShownText` turns the tokens into text that is final.

Legend: B batch, N positions, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

CONTEXT = 8  # tokens before a new one that its text may depend on
UNFINISHED = "\ufffd"  # what bytes decode to that are not yet a character


class Decoder(Protocol):
    """A model that writes after what it has read, and its state."""

    def read(self, ids: Array) -> Array:
        """The logits (B, V) after these tokens (B, N)."""


class BeamDecoder(Decoder, Protocol):
    """A decoder whose samples can be copied."""

    def rows(self, index: Array) -> BeamDecoder:
        """A decoder that continues these samples."""


def write_tokens(
    decoder: Decoder,
    logits: Array,
    *,
    choose: Callable[[Array], Array],
    ends: Sequence[int],
    most: int,
    pad: int = 0,
) -> Iterator[Array]:
    """The next token of each sample (B), until all have ended; at most so many.

    `logits` are those after the prompt. After the end of a sample its tokens are `pad`.
    """
    done = np.zeros(len(logits), bool)
    for count in range(1, most + 1):
        token = np.where(done, pad, choose(logits))
        yield token
        done |= np.isin(token, ends)
        if count == most or done.all():
            return
        logits = decoder.read(token[:, None])


def choice(
    temperature: float, draw: Callable[[Array], Array], top_p: float = 1.0
) -> Callable[[Array], Array]:
    """From logits (B, V) to tokens (B): the likeliest at temperature 0, otherwise drawn.

    `draw` draws from probabilities (B, V), of which those beyond the likeliest `top_p` are 0.
    """
    if temperature == 0:
        return lambda logits: logits.argmax(-1)
    cold = max(temperature, 1e-100)  # finite: logits are float32

    def chosen(logits: Array) -> Array:
        likely = np.exp(log_softmax(_shifted(logits) / cold))
        if top_p < 1:
            order = np.argsort(-likely, axis=-1, kind="stable")
            values = np.take_along_axis(likely, order, -1)
            outside = values.cumsum(-1) - values >= top_p
            outside[:, 0] = False  # the likeliest stays, even with top_p = 0
            np.put_along_axis(likely, order, np.where(outside, 0.0, values), -1)
        return draw(likely)

    return chosen


def best_of_beams(
    decoder: BeamDecoder,
    logits: Array,
    *,
    beams: int,
    ends: Sequence[int],
    most: int,
    penalty: float,
    pad: int,
) -> Array:
    """The text of each sample with the highest log-likelihood / length ** penalty, of at most
    `most` tokens: (B, longest). Every sample on its own: few hold as many texts at once.
    """
    best = []
    for sample in range(len(logits)):
        index = np.full(beams, sample)
        best.append(_best(decoder.rows(index), logits[index], most, penalty, ends))
    longest = max(map(len, best))
    return np.array([text + [pad] * (longest - len(text)) for text in best])


def _best(
    decoder: BeamDecoder, logits: Array, most: int, penalty: float, ends: Sequence[int]
) -> list[int]:
    """The best text of as many beams as there are rows."""
    beams = len(logits)
    texts: list[list[int]] = [[] for _ in range(beams)]
    scores = np.array([0.0] + [-np.inf] * (beams - 1))  # at first they are all the same
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        total = scores[:, None] + log_softmax(logits)
        order = np.argsort(-total, axis=None, kind="stable")[: 2 * beams]
        going: list[tuple[float, int, int]] = []
        for rank, flat in enumerate(order):
            beam, token = divmod(int(flat), logits.shape[1])
            score = float(total[beam, token])
            if token in ends:
                if rank < beams:
                    finished.append((score / length**penalty, [*texts[beam], token]))
            elif len(going) < beams:
                going.append((score, beam, token))
        texts = [[*texts[beam], token] for _, beam, token in going]
        scores = np.array([score for score, _, _ in going])
        finished = sorted(finished, key=lambda done: -done[0])[:beams]
        hopeless = len(finished) == beams and finished[-1][0] >= scores[0] / length**penalty
        if hopeless or length == most:
            break
        decoder = decoder.rows(np.array([beam for _, beam, _ in going]))
        logits = decoder.read(np.array([[token] for _, _, token in going]))
    if len(finished) < beams or not ends:
        finished += [
            (score / length**penalty, text) for score, text in zip(scores, texts, strict=True)
        ]
    return max(finished, key=lambda done: done[0])[1]


def log_softmax(logits: Array) -> Array:
    shifted = _shifted(logits)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _shifted(logits: Array) -> Array:
    return logits.astype("float64") - logits.max(-1, keepdims=True)


class ShownText:
    """The text of tokens, each piece as soon as it is final, up to the first stop string.

    What is no whole character yet, or might be the beginning of a stop string, is held back. What
    is kept does not grow with the text.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-CONTEXT:])
        self._decoded = self._decode()
        self._stops = stops
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What can be shown after one token more."""
        self._tokens.append(token)
        text = self._decode()
        if text.endswith(UNFINISHED) and len(self._tokens) < 4 * CONTEXT:
            return self._until_stop("")
        new = text[len(self._decoded) :]
        self._decoded = text
        if len(self._tokens) >= 2 * CONTEXT:
            self._tokens = self._tokens[-CONTEXT:]
            self._decoded = self._decode()
        return self._until_stop(new)

    def rest(self) -> str:
        """What was held back, at the end."""
        text = self._decode()
        shown = self._until_stop(text[len(self._decoded) :]) + self._held
        self._decoded, self._held = text, ""
        return shown

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def _until_stop(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        places = [text.find(stop) for stop in self._stops if stop in text]
        if places:
            self._held, self.stopped = "", True
            return text[: min(places)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that begins a stop string."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
