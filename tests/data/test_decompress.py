"""Compressed content: what Python's own modules give, complete or refused, in bounded memory."""

from __future__ import annotations

import gzip
import io
import lzma
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from linformer_kit.data import decompress
from linformer_kit.data.decompress import CODECS, Decompressed, Expansion
from linformer_kit.errors import UserError

COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def stream(suffix, packed, path="a"):
    raw = Decompressed(io.BytesIO(packed), CODECS[suffix], Expansion(path, len(packed)))
    return io.BufferedReader(raw, 1 << 16)


@pytest.mark.parametrize("suffix", COMPRESS)
@given(parts=st.lists(st.binary(max_size=5000), min_size=1, max_size=4), pad=st.integers(0, 3))
def test_members_one_after_the_other_are_one_content(suffix, parts, pad):
    packed = b"".join(COMPRESS[suffix](part) + bytes(4 * pad) for part in parts)
    assert stream(suffix, packed).read() == b"".join(parts)


@pytest.mark.parametrize("suffix", COMPRESS)
@given(content=st.binary(min_size=1, max_size=3000), share=st.floats(0, 0.999))
def test_no_cut_is_taken_for_the_whole(suffix, content, share):
    packed = COMPRESS[suffix](content)
    with pytest.raises((ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError)):
        stream(suffix, packed[: int(share * len(packed))]).read()


def bomb(suffix, megabytes):
    """Zeros, compressed without holding them."""
    makers = {
        ".gz": lambda: zlib.compressobj(wbits=31, level=9),
        ".xz": lambda: lzma.LZMACompressor(preset=0),
        ".zst": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    }
    made, chunk = makers[suffix](), bytes(1_000_000)
    return b"".join([*(made.compress(chunk) for _ in range(megabytes)), made.flush()])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_bomb_takes_little_memory(suffix):
    packed = bomb(suffix, 100)
    assert len(packed) < 1_000_000
    source = stream(suffix, packed)
    tracemalloc.start()
    try:
        size = 0
        while chunk := source.read(1 << 20):
            size += len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 100_000_000
    assert peak < 50_000_000


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_may_not_expand_without_end(suffix, monkeypatch):
    monkeypatch.setattr(decompress, "FLOOR", 2_000_000)
    source = stream(suffix, bomb(suffix, 60), path="bomb.txt")
    with pytest.raises(UserError, match=r"bomb.txt expands to more than 250 times its size"):
        list(iter(lambda: source.read(1 << 20)[:1], b""))
