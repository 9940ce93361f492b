"""The tokens of a long text, window by window.

The memory does not grow with the text, and between two windows the work may be stopped. The tokens
are those of the whole text: models of tokens (BPE, WordPiece, unigram) never join two words of the
pre-tokenizer, so a window is cut where a word ends. Words near the end of a window may go on
behind it, and a tokenizer may treat the beginning of a text in its own way. So the cut is well
before the end, the window after it must begin with the same tokens, and those are taken from the
window before. Where there is no such cut, as in a million letters without a space, the window is
widened.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, user_input
from .tokenizer import encode_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerFast

WINDOW = 2**16  # characters
TAIL = 256  # characters at the end of a window whose tokens are not looked at
PROBE = 16  # words after a cut that both windows must read alike


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What ends the reading of a text early.

    check: called before and between windows with the number of tokens so far; ends it by raising.
    widest: bytes of a window, at most; a text in which no word ends for so long is refused.
    """

    check: Callable[[int], None] = lambda tokens: None
    widest: int | None = None


UNBOUNDED = Bounds()


@dataclass
class LongEncoding:
    """The tokens of a text, with the attributes of a `tokenizers.Encoding` that are used here."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    _offsets: array[int] = field(default_factory=lambda: array("q"))  # start, end, start, ...
    _words: array[int] = field(default_factory=lambda: array("q"))  # -1: of no word

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return list(zip(self._offsets[::2], self._offsets[1::2], strict=True))

    @property
    def word_ids(self) -> list[int | None]:
        return [None if word < 0 else word for word in self._words]

    def extend(self, window: _Window, first: int, last: int) -> None:
        """Take the tokens `first` to `last` of a window."""
        # A word that both windows have tells how the words of this one are counted in the text.
        shift = self._words[-1] - window.word(first - 1) if first else 0
        places, start = range(first, last), window.start
        self.ids.extend(window.ids[first:last])
        self._offsets.extend(start + each for at in places for each in window.offsets(at))
        words = map(window.word, places)
        self._words.extend(word + shift if word >= 0 else -1 for word in words)


class _Cut(NamedTuple):
    """Where a window may end: its token `at` begins the next one, which repeats them to `stop`."""

    at: int
    stop: int


@dataclass(frozen=True)
class _Window:
    """The tokens of a part of a text. Lists of all would take more memory than the encoding."""

    start: int
    text: str
    encoding: Any

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self.encoding.ids
        return ids

    def offsets(self, at: int) -> tuple[int, int]:
        found: tuple[int, int] = self.encoding.token_to_chars(at)
        return found

    def word(self, at: int) -> int:
        """The number of the word of a token, -1 if it has none."""
        word = self.encoding.token_to_word(at)
        return -1 if word is None else word

    def cut(self, first: int) -> _Cut | None:
        """A cut behind the token `first`: before a space if there is one, and the last of these.

        Without the space before it a tokenizer may read a word otherwise.
        """
        last, reliable, found = len(self.encoding) - 1, len(self.text) - TAIL, None
        if last <= first or 0 <= self.word(first) == self.word(last):
            return None
        following: list[int] = []  # tokens before which a word ends, from the last one on
        for at in range(last, first, -1):
            end = self.offsets(at - 1)[1]
            if end > reliable or not self._splits(at, end):
                continue
            if len(following) >= PROBE:
                here = _Cut(at, following[-PROBE])
                if self.text[end] == " ":
                    return here
                found = found or here
                if end < len(self.text) // 2:
                    break
            following.append(at)
        return found

    def _splits(self, at: int, end: int) -> bool:
        """Whether a word ends before this token, with a character that is no space.

        Tokenizers may leave spaces out of their offsets.
        """
        if not 0 < end <= self.offsets(at)[0] or self.text[end - 1].isspace():
            return False
        word = self.word(at)
        return word < 0 or word != self.word(at - 1)

    def begins_as(self, before: _Window, cut: _Cut) -> bool:
        """Whether it has the tokens of the window before from its cut on.

        The offsets of the first token may differ: its space may be the one before a text.
        """
        count, shift = cut.stop - cut.at, self.start - before.start
        if self.ids[:count] != before.ids[cut.at : cut.stop]:
            return False
        for at in range(1, count):
            start, end = self.offsets(at)
            if (start + shift, end + shift) != before.offsets(cut.at + at):
                return False
        return True


def encode_long(
    tokenizer: PreTrainedTokenizerFast, text: str, bounds: Bounds = UNBOUNDED
) -> LongEncoding | Any:
    """The encoding of a text of any length, whole and without frame."""
    bounds.check(0)
    if len(text) <= WINDOW:
        return _encoded(tokenizer, text)
    found = LongEncoding()
    window, known = _window(tokenizer, text, 0, WINDOW), 0  # tokens of the window that are taken
    while window.start + len(window.text) < len(text):
        cut = window.cut(known)
        following = None if cut is None else _following(tokenizer, text, window, cut)
        if cut is not None and following is not None:
            found.extend(window, known, cut.stop)
            window, known = following, cut.stop - cut.at
            bounds.check(len(found.ids))
            continue
        bounds.check(len(found.ids))
        start, size = window.start, _wider(text, window, bounds.widest)
        del window, following  # their memory
        window = _window(tokenizer, text, start, size)
    found.extend(window, known, len(window.encoding))
    return found


def _following(
    tokenizer: PreTrainedTokenizerFast, text: str, window: _Window, cut: _Cut
) -> _Window | None:
    """The window that begins at the cut of another, if it begins with the same tokens."""
    start = window.start + window.offsets(cut.at - 1)[1]
    made = _window(tokenizer, text, start, WINDOW)
    return made if made.begins_as(window, cut) else None


def _wider(text: str, window: _Window, widest: int | None) -> int:
    """Twice the characters of a window, or as many as `widest` bytes have."""
    size = 2 * len(window.text)
    if widest is not None:
        part = text[window.start : window.start + size].encode(errors="replace")
        size = len(part[:widest].decode(errors="ignore"))
        if size <= len(window.text):
            raise UserError(
                f"a text must not have more than {widest:,} bytes in a row in which no word of the "
                f"tokenizer ends: got more from character {window.start + 1:,} on. Put spaces or "
                "line breaks into it, or divide it into several texts."
            )
    return size


def _window(tokenizer: PreTrainedTokenizerFast, text: str, start: int, size: int) -> _Window:
    part = text[start : start + size]
    return _Window(start, part, _encoded(tokenizer, part))


def _encoded(tokenizer: PreTrainedTokenizerFast, text: str) -> Any:
    with user_input("the text cannot be tokenized"):
        return encode_whole(tokenizer, [text])[0]
