"""Files that nobody should be able to crash, hang or fill a machine with.

Each function writes one file into a folder and returns its path. The groups at the end say what
kind of data a file pretends to be: `TEXTS` and `TABLES` hold documents (column `text`), `LABELS`
documents with a `label`, `FEATURES` sequences in `signal` with a `label`.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import stat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

if TYPE_CHECKING:
    from pathlib import Path

SENTENCES = [
    f"Sentence number {number} says hello to {number % 7} dogs.\n" for number in range(500)
]
TEXT = "".join(SENTENCES).encode()
BOMB_MB = 40  # of zeros without a line end, a few kB when compressed


def _write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _json_lines(folder: Path, name: str, *lines: str) -> Path:
    good = json.dumps({"text": "fine", "label": "a"})
    return _write(folder, name, "\n".join([good, *lines, good, ""]).encode())


# JSON lines


def write_deep_json(folder: Path) -> Path:
    return _json_lines(folder, "deep.jsonl", '{"text": ' + "[" * 200_000 + "]" * 200_000 + "}")


def write_lone_surrogate(folder: Path) -> Path:
    return _json_lines(folder, "surrogate.jsonl", r'{"text": "half a pair: \ud800", "label": "b"}')


def write_huge_integer(folder: Path) -> Path:
    return _json_lines(folder, "integer.jsonl", '{"text": ' + "9" * 10_000 + "}")


def write_null_text(folder: Path) -> Path:
    return _json_lines(folder, "null.jsonl", '{"text": null, "label": "a"}')


def write_nan_text(folder: Path) -> Path:
    return _json_lines(folder, "nan.jsonl", '{"text": NaN, "label": "a"}')


def write_truncated_json(folder: Path) -> Path:
    return _write(folder, "truncated.jsonl", b'{"text": "fine"}\n{"text": "not fi')


def write_pretty_json(folder: Path) -> Path:
    content = json.dumps([{"text": "fine"}], indent=1)
    return _write(folder, "pretty.json", content.encode())


# compressed files


def write_truncated_gz(folder: Path) -> Path:
    packed = gzip.compress(TEXT)
    return _write(folder, "truncated.txt.gz", packed[: len(packed) // 2])


def write_truncated_xz(folder: Path) -> Path:
    packed = lzma.compress(TEXT)
    return _write(folder, "truncated.txt.xz", packed[: len(packed) // 2])


def write_truncated_zst(folder: Path) -> Path:
    """Cut between two blocks of the frame, where a reader sees nothing wrong until the end."""
    made = zstandard.ZstdCompressor().compressobj()
    packed = made.compress(TEXT) + made.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return _write(folder, "truncated.txt.zst", packed)


def write_second_frame_truncated_zst(folder: Path) -> Path:
    packed = zstandard.ZstdCompressor().compress(TEXT)
    return _write(folder, "second.txt.zst", packed + packed[:-4])


def write_garbage_gz(folder: Path) -> Path:
    return _write(folder, "garbage.txt.gz", b"\x1f\x8bnot gzip at all" * 20)


def write_garbage_xz(folder: Path) -> Path:
    return _write(folder, "garbage.txt.xz", b"not xz at all" * 20)


def write_garbage_zst(folder: Path) -> Path:
    return _write(folder, "garbage.txt.zst", b"\x28\xb5\x2f\xfdnot zstd at all" * 20)


def write_empty_gz(folder: Path) -> Path:
    return _write(folder, "empty.txt.gz", b"")


def write_empty_zst(folder: Path) -> Path:
    return _write(folder, "empty.txt.zst", b"")


def write_flipped_gz(folder: Path) -> Path:
    """The content is readable, and its checksum is wrong."""
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 0xFF
    return _write(folder, "flipped.txt.gz", bytes(packed))


def write_trailing_garbage_gz(folder: Path) -> Path:
    return _write(folder, "trailing.txt.gz", gzip.compress(TEXT) + b"and then something else")


def write_trailing_garbage_xz(folder: Path) -> Path:
    return _write(folder, "trailing.txt.xz", lzma.compress(TEXT) + b"and then something else")


def write_bomb_gz(folder: Path) -> Path:
    return _write(folder, "bomb.txt.gz", gzip.compress(bytes(BOMB_MB * 1_000_000), 9))


def write_bomb_xz(folder: Path) -> Path:
    return _write(folder, "bomb.txt.xz", lzma.compress(bytes(BOMB_MB * 1_000_000), preset=0))


def write_bomb_zst(folder: Path) -> Path:
    packed = zstandard.ZstdCompressor(level=1).compress(bytes(BOMB_MB * 1_000_000))
    return _write(folder, "bomb.txt.zst", packed)


def write_wide_window_zst(folder: Path) -> Path:
    """A frame that asks for a window of 2 GB."""
    options = zstandard.ZstdCompressionParameters(window_log=31)
    made = zstandard.ZstdCompressor(compression_params=options).compressobj()
    return _write(folder, "window.txt.zst", made.compress(TEXT) + made.flush())


def write_large_dictionary_xz(folder: Path) -> Path:
    """A stream that asks for a dictionary of 1.5 GB; only its header says so."""
    packed = bytearray(lzma.compress(TEXT, check=lzma.CHECK_NONE))
    # Block header at 12: size, flags, filter id 0x21, size of its properties, dictionary size.
    assert packed[14:16] == b"\x21\x01"
    packed[16] = 39  # 3 << 29 bytes; the CRC32 of the header is made to fit
    import zlib

    size = (packed[12] + 1) * 4
    packed[12 + size - 4 : 12 + size] = zlib.crc32(packed[12 : 12 + size - 4]).to_bytes(4, "little")
    return _write(folder, "dictionary.txt.xz", bytes(packed))


# text


def write_utf16(folder: Path) -> Path:
    return _write(folder, "utf16.txt", "ein Text\n".encode("utf-16"))


def write_utf16_without_bom(folder: Path) -> Path:
    return _write(folder, "utf16le.txt", "ein Text\n".encode("utf-16-le"))


def write_latin1(folder: Path) -> Path:
    return _write(folder, "latin1.txt", "fein\nGröße\n".encode("latin-1"))


def write_binary(folder: Path) -> Path:
    return _write(folder, "binary.txt", bytes(range(256)) * 10)


def write_sparse(folder: Path) -> Path:
    """A file of 200 MB that takes no place on the disk."""
    path = folder / "sparse.txt"
    path.touch()
    os.truncate(path, 200_000_000)
    return path


def write_long_line(folder: Path) -> Path:
    return _write(folder, "line.txt", b"x" * 1_500_000)


# tables


def write_csv_with_nul(folder: Path) -> Path:
    return _write(folder, "nul.csv", b"text,label\nfine,a\nbr\0ken,b\n")


def write_csv_with_open_quote(folder: Path) -> Path:
    return _write(folder, "quote.csv", b'text,label\nfine,a\n"never closed,b\n' + TEXT)


def write_csv_with_huge_open_quote(folder: Path) -> Path:
    """Every line is short, and the field that they make up is longer than the limit."""
    return _write(folder, "field.csv", b'text,label\n"' + TEXT * 60)


def write_csv_with_stray_quote(folder: Path) -> Path:
    return _write(folder, "stray.csv", b'text,label\n"so "or so" it is",a\n')


def write_csv_with_ragged_rows(folder: Path) -> Path:
    return _write(folder, "ragged.csv", b"text,label\nfine,a\none,two,three\n")


def write_csv_with_two_columns_of_one_name(folder: Path) -> Path:
    return _write(folder, "twice.csv", b"text,text,label\nfine,fine too,a\n")


def write_truncated_parquet(folder: Path) -> Path:
    path = folder / "truncated.parquet"
    pq.write_table(pa.table({"text": SENTENCES, "label": ["a"] * len(SENTENCES)}), path)
    return _write(folder, path.name, path.read_bytes()[:-50])


def write_garbage_parquet(folder: Path) -> Path:
    return _write(folder, "garbage.parquet", b"PAR1" + b"\xff\0garbage" * 99 + b"\xff\0\0\0PAR1")


def write_damaged_parquet(folder: Path) -> Path:
    """Its footer is whole and its pages are not."""
    path = folder / "damaged.parquet"
    pq.write_table(pa.table({"text": SENTENCES, "label": ["a"] * len(SENTENCES)}), path)
    content = bytearray(path.read_bytes())
    content[4:400] = b"\xff" * 396
    return _write(folder, path.name, bytes(content))


def write_empty_parquet(folder: Path) -> Path:
    return _write(folder, "empty.parquet", b"")


def _parquet(folder: Path, name: str, values: list[Any], kind: Any = None) -> Path:
    path = folder / name
    column = pa.array(values, type=kind)
    pq.write_table(pa.table({"text": column, "label": ["a", "b", "a"]}), path)
    return path


def write_parquet_of_numbers(folder: Path) -> Path:
    return _parquet(folder, "numbers.parquet", [1, 2, 3])


def write_parquet_of_nulls(folder: Path) -> Path:
    return _parquet(folder, "nulls.parquet", ["fine", None, "fine"])


def write_parquet_of_bytes(folder: Path) -> Path:
    return _parquet(folder, "bytes.parquet", [b"fine", b"\xff\xfe", b"fine"])


def write_parquet_that_is_not_utf8(folder: Path) -> Path:
    """A string column whose bytes are no UTF-8, which Arrow does not check."""
    values = pa.array([b"fine", b"\xff\xfe", b"fine"], type=pa.binary())
    path = folder / "latin.parquet"
    strings = pa.StringArray.from_buffers(3, *values.buffers()[1:])
    pq.write_table(pa.table({"text": strings, "label": ["a", "b", "a"]}), path)
    return path


def write_parquet_bomb(folder: Path) -> Path:
    """20,000 rows of the same 2 MB: 40 GB of text from one page."""
    path = folder / "bomb.parquet"
    word = pa.array(["x" * 2_000_000])
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, type=pa.int32()), word)
    pq.write_table(pa.table({"text": same, "label": ["a"] * 20_000}), path)
    return path


# not regular files, and what is not there


def write_fifo(folder: Path) -> Path:
    path = folder / "pipe.txt"
    os.mkfifo(path)
    return path


def write_compressed_fifo(folder: Path) -> Path:
    path = folder / "pipe.txt.gz"
    os.mkfifo(path)
    return path


def write_parquet_fifo(folder: Path) -> Path:
    path = folder / "pipe.parquet"
    os.mkfifo(path)
    return path


def write_socket(folder: Path) -> Path:
    path = folder / "socket.txt"
    os.mknod(path, stat.S_IFSOCK | 0o600)
    return path


def write_endless_device(folder: Path) -> Path:
    path = folder / "zero.txt"
    path.symlink_to("/dev/zero")
    return path


def write_dangling_link(folder: Path) -> Path:
    path = folder / "dangling.txt"
    path.symlink_to(folder / "nothing here")
    return path


def write_link_to_itself(folder: Path) -> Path:
    path = folder / "itself.txt"
    path.symlink_to(path)
    return path


def write_folder_with_a_fifo(folder: Path) -> Path:
    path = folder / "with-fifo"
    path.mkdir()
    (path / "a.txt").write_bytes(TEXT)
    os.mkfifo(path / "b.txt")
    return path


def write_folder_with_a_dangling_link(folder: Path) -> Path:
    path = folder / "with-link"
    path.mkdir()
    (path / "a.txt").write_bytes(TEXT)
    (path / "b.txt").symlink_to("nothing here")
    return path


def write_folder_without_text(folder: Path) -> Path:
    path = folder / "pictures"
    path.mkdir()
    (path / "a.png").write_bytes(b"\x89PNG")
    return path


# labels and features


def _labels(folder: Path, name: str, label: str) -> Path:
    return _json_lines(folder, name, f'{{"text": "fine", "label": {label}}}')


def write_empty_label(folder: Path) -> Path:
    return _labels(folder, "empty-label.jsonl", '" "')


def write_null_label(folder: Path) -> Path:
    return _labels(folder, "null-label.jsonl", "null")


def write_boolean_label(folder: Path) -> Path:
    return _labels(folder, "boolean-label.jsonl", "true")


def write_fractional_label(folder: Path) -> Path:
    return _labels(folder, "fraction-label.jsonl", "0.5")


def write_list_label(folder: Path) -> Path:
    return _labels(folder, "list-label.jsonl", '["a"]')


def write_endless_label(folder: Path) -> Path:
    return _labels(folder, "endless-label.jsonl", '"' + "x" * 5000 + '"')


def write_empty_csv_label(folder: Path) -> Path:
    return _write(folder, "empty-label.csv", b"text,label\nfine,a\nfine,\nfine,b\n")


def _features(folder: Path, name: str, value: str) -> Path:
    good = [f'{{"signal": [[{n}, 1], [2.5, 3]], "label": "{"ab"[n % 2]}"}}' for n in range(40)]
    bad = f'{{"signal": {value}, "label": "a"}}'
    return _write(folder, name, "\n".join([*good[:20], bad, *good[20:], ""]).encode())


def write_nan_features(folder: Path) -> Path:
    return _features(folder, "nan-features.jsonl", "[[1, 2], [3, NaN]]")


def write_infinite_features(folder: Path) -> Path:
    return _features(folder, "infinite-features.jsonl", "[[1, 2], [-Infinity, 4]]")


def write_too_large_features(folder: Path) -> Path:
    return _features(folder, "large-features.jsonl", "[[1, 2], [3, 1e300]]")


def write_huge_integer_features(folder: Path) -> Path:
    return _features(folder, "integer-features.jsonl", f"[[1, 2], [3, {10**400}]]")


def write_null_features(folder: Path) -> Path:
    return _features(folder, "null-features.jsonl", "[[1, 2], [3, null]]")


def write_no_features(folder: Path) -> Path:
    return _features(folder, "no-features.jsonl", "null")


def write_text_features(folder: Path) -> Path:
    return _features(folder, "text-features.jsonl", '[[1, 2], [3, "4"]]')


def write_boolean_features(folder: Path) -> Path:
    return _features(folder, "boolean-features.jsonl", "[[1, 2], [3, true]]")


def write_ragged_features(folder: Path) -> Path:
    return _features(folder, "ragged-features.jsonl", "[[1, 2], [3]]")


def write_deep_features(folder: Path) -> Path:
    return _features(folder, "deep-features.jsonl", "[[[1, 2]], [[3, 4]]]")


def write_mixed_features(folder: Path) -> Path:
    return _features(folder, "mixed-features.jsonl", "[[1, 2], 3]")


def write_empty_features(folder: Path) -> Path:
    return _features(folder, "empty-features.jsonl", "[]")


def write_empty_positions(folder: Path) -> Path:
    return _features(folder, "empty-positions.jsonl", "[[], []]")


def write_object_features(folder: Path) -> Path:
    return _features(folder, "object-features.jsonl", '{"a": 1}')


def write_wider_features(folder: Path) -> Path:
    return _features(folder, "wider-features.jsonl", "[[1, 2, 3], [4, 5, 6]]")


TEXTS = (
    write_truncated_gz,
    write_truncated_xz,
    write_truncated_zst,
    write_second_frame_truncated_zst,
    write_garbage_gz,
    write_garbage_xz,
    write_garbage_zst,
    write_empty_gz,
    write_empty_zst,
    write_flipped_gz,
    write_trailing_garbage_gz,
    write_trailing_garbage_xz,
    write_bomb_gz,
    write_bomb_xz,
    write_bomb_zst,
    write_wide_window_zst,
    write_large_dictionary_xz,
    write_utf16,
    write_utf16_without_bom,
    write_latin1,
    write_binary,
    write_sparse,
    write_long_line,
    write_fifo,
    write_compressed_fifo,
    write_socket,
    write_endless_device,
    write_dangling_link,
    write_link_to_itself,
    write_folder_with_a_fifo,
    write_folder_with_a_dangling_link,
    write_folder_without_text,
)
TABLES = (
    write_deep_json,
    write_lone_surrogate,
    write_huge_integer,
    write_null_text,
    write_nan_text,
    write_truncated_json,
    write_pretty_json,
    write_csv_with_nul,
    write_csv_with_open_quote,
    write_csv_with_huge_open_quote,
    write_csv_with_stray_quote,
    write_csv_with_ragged_rows,
    write_csv_with_two_columns_of_one_name,
    write_truncated_parquet,
    write_garbage_parquet,
    write_damaged_parquet,
    write_empty_parquet,
    write_parquet_of_numbers,
    write_parquet_of_nulls,
    write_parquet_of_bytes,
    write_parquet_that_is_not_utf8,
    write_parquet_bomb,
    write_parquet_fifo,
)
LABELS = (
    write_empty_label,
    write_null_label,
    write_boolean_label,
    write_fractional_label,
    write_list_label,
    write_endless_label,
    write_empty_csv_label,
)
FEATURES = (
    write_nan_features,
    write_infinite_features,
    write_too_large_features,
    write_huge_integer_features,
    write_null_features,
    write_no_features,
    write_text_features,
    write_boolean_features,
    write_ragged_features,
    write_deep_features,
    write_mixed_features,
    write_empty_features,
    write_empty_positions,
    write_object_features,
    write_wider_features,
)
