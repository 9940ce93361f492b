"""Compressed files (.gz, .xz, .zst) as streams: complete, or an error; memory stays bounded.

Compressed bytes are decompressed a small slice at a time, so that one call returns less than twenty
megabytes even for a decompression bomb: the largest ratios are 1,032 (gzip), about 7,000
(xz) and 32,768 (zstd). The memory of the decompressors themselves is limited too (`MEMORY`), and
so is the size of the whole: beyond `FLOOR` bytes a file may expand to `EXPANSION` times its size.
"""

from __future__ import annotations

import io
import lzma
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, cast

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMORY = 2**27  # bytes of a decompressor's window: what `zstd -d` accepts, and twice that of xz -9
FLOOR = 1_000_000_000  # bytes that any file may expand to
EXPANSION = 250  # times its size, beyond that: text is compressed 3 to 30 times


class Decoder(Protocol):
    """One member (gzip), stream (xz) or frame (zstd) of a file."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True)
class Codec:
    """How to begin a member, and how many compressed bytes to decompress at a time."""

    decoder: Callable[[], Decoder]
    step: int


def _zstd() -> Decoder:
    import zstandard

    made = zstandard.ZstdDecompressor(max_window_size=MEMORY).decompressobj(write_size=1 << 16)
    return cast("Decoder", made)


CODECS = {
    ".gz": Codec(lambda: cast("Decoder", zlib.decompressobj(wbits=31)), step=1 << 13),
    ".xz": Codec(lambda: cast("Decoder", lzma.LZMADecompressor(memlimit=MEMORY)), step=1 << 10),
    ".zst": Codec(_zstd, step=1 << 9),
}


class Expansion:
    """What came out of a file so far, held against the file's size."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._limit = max(FLOOR, EXPANSION * size)
        self._total = 0

    def add(self, size: int) -> None:
        """Refuse what no text or table expands to."""
        self._total += size
        if self._total > self._limit:
            raise UserError(
                f"{self._path} expands to more than {EXPANSION} times its size "
                f"({self._limit / 1e9:,.1f} GB), like a decompression bomb. "
                "Decompress it to plain text first if it really holds that much."
            )


class Decompressed(io.RawIOBase):
    """The content of a compressed file; several members one after the other are one content."""

    def __init__(self, file: IO[bytes], codec: Codec, expansion: Expansion) -> None:
        self._file = file
        self._codec = codec
        self._expansion = expansion
        self._decoder: Decoder | None = None
        self._rest = b""  # read from the file and not decompressed yet
        self._ready = memoryview(b"")  # decompressed and not handed out yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(cast("bytearray", buffer)).cast("B")
        while not self._ready:
            if not self._advance():
                return 0
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _advance(self) -> bool:
        """Decompress one more slice; False at the end of the file."""
        data = self._rest or self._file.read(self._codec.step)
        self._rest = b""
        if not data:
            if self._decoder is None:
                raise ValueError("the file is empty")
            if not self._decoder.eof:
                raise ValueError("the file ends in the middle of the compressed data")
            return False
        if self._decoder is None:
            self._decoder = self._codec.decoder()
        elif self._decoder.eof:
            data = data.lstrip(b"\0")  # members may be padded with zeros
            if not data:
                return True
            self._decoder = self._codec.decoder()
        self._ready = memoryview(self._decoder.decompress(data))
        self._expansion.add(len(self._ready))
        if self._decoder.eof:
            self._rest = self._decoder.unused_data
        return True
