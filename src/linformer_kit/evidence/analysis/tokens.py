r"""Tokens as text: undo a tokenizer's encoding of a token.

byte-level BPE  one character a byte: `âĢĿ` is the three bytes of a closing quote, `Ċ` a line break
unigram         `▁` is a space
wordpiece       `##` marks a token that continues a word
byte fallback   `<0xE2>` is a byte

Bytes that are not whole characters are shown as `\xe2`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token; special tokens by their names."""
    special = set(tokenizer.all_special_ids)
    spell = _spelling(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(ids))
    return [
        str(name) if number in special or name is None else spell(name)
        for number, name in zip(ids, names, strict=True)
    ]


def visible(text: str) -> str:
    """A token for a table: line breaks, tabs, spaces and control characters can be seen."""
    if text and not text.strip(" "):
        return "␣"
    shown = text.strip(" ").replace("\r\n", "↵").replace("\n", "↵").replace("\t", "⇥")
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown
    )


def _spelling(tokenizer: Any) -> Callable[[str], str]:
    """The function that maps a token of this tokenizer to its text."""
    parts = _parts(tokenizer)
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return _from_byte_characters
    spaces = [part.get("replacement", "▁") for part in parts if part.get("type") == "Metaspace"]
    spaces += [
        part.get("pattern", {}).get("String", "▁")
        for part in parts
        if part.get("type") == "Replace" and part.get("content") == " "
    ]
    prefixes = [part.get("prefix", "##") for part in parts if part.get("type") == "WordPiece"]

    def spell(token: str) -> str:
        byte = BYTE.fullmatch(token)
        if byte is not None:
            return _from_bytes(bytes([int(byte[1], 16)]))
        for prefix in prefixes:
            if token.startswith(prefix) and token != prefix:
                return token[len(prefix) :]
        for space in spaces:
            token = token.replace(space, " ")
        return token

    return spell


def _parts(tokenizer: Any) -> list[dict[str, Any]]:
    """The decoders and pre-tokenizers; those of a tokenizer in Python are not known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [{"type": "WordPiece"}, {"type": "Metaspace"}]
    whole = json.loads(backend.to_str())
    waiting = [whole.get("decoder"), whole.get("pre_tokenizer")]
    found = []
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            found.append(part)
            waiting += [*part.get("decoders", ()), *part.get("pretokenizers", ())]
    return found


def _byte_characters() -> dict[str, int]:
    """Byte-level BPE writes a byte as the Latin-1 character if that is visible, and the others, in
    order, as the characters from 256 on.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


BYTE_OF = _byte_characters()


def _from_byte_characters(token: str) -> str:
    if not all(character in BYTE_OF for character in token):
        return token  # an added token, which is spelled as it is
    return _from_bytes(bytes(BYTE_OF[character] for character in token))


def _from_bytes(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")
