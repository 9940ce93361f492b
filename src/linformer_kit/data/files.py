"""Files the user has: found by name, folder or glob, unpacked and read a line at a time.

Nothing is held but one line (or one document), so memory does not grow with the corpus, and a line
longer than the limit is refused before it is read whole.
"""

from __future__ import annotations

import gzip
import lzma
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKED = (".gz", ".zst", ".xz")
SUFFIXES = (
    ".txt",
    ".md",
    ".rst",
    ".text",
    ".csv",
    ".tsv",
    ".jsonl",
    ".ndjson",
    ".json",
    ".parquet",
)
MB = 1_000_000


def find(source: str) -> list[Path]:
    """The files behind a name: a file, a folder (with all below it) or a glob; in sorted order."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*")) if p.is_file() and kind_of(p) in SUFFIXES]
        if not found:
            raise UserError(
                f"the folder {source} holds no file to read: got none that ends in "
                f"{', '.join(SUFFIXES)} (or these with {', '.join(PACKED)})."
            )
        return found
    if any(sign in source for sign in "*?["):
        root = Path(path.anchor) if path.is_absolute() else Path()
        found = [p for p in sorted(root.glob(str(path.relative_to(path.anchor)))) if p.is_file()]
        if not found:
            raise UserError(f"no file matches {source}.")
        return found
    raise UserError(f"there is no file or folder {source}.")


def kind_of(path: Path) -> str:
    """The suffix that tells the format, without the compression's."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@dataclass
class Limits:
    """How long one piece may be, and whom to tell how many bytes of the files are done."""

    document_mb: int = 64
    tell: Callable[[int], None] = field(default=lambda size: None)

    @property
    def bytes(self) -> int:
        return self.document_mb * MB


def open_bytes(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """The unpacked stream, and the file under it (whose position tells how far we are)."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)), raw
    if suffix == ".xz":
        return cast("IO[bytes]", lzma.LZMAFile(raw)), raw
    if suffix == ".zst":
        try:
            import zstandard
        except ModuleNotFoundError:
            raise UserError(f"{path} needs the package zstandard: pip install zstandard") from None
        import io

        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return cast("IO[bytes]", io.BufferedReader(cast("io.RawIOBase", reader), 1 << 20)), raw
    return raw, raw


def lines(path: Path, limits: Limits) -> Iterator[str]:
    """The lines of a file with their ends, decoded as UTF-8."""
    stream, raw = open_bytes(path)
    done = 0
    with raw, stream:
        number = 0
        while True:
            try:
                line = stream.readline(limits.bytes + 1)
            except (OSError, EOFError, lzma.LZMAError, ValueError, _zstd_error()) as error:
                raise UserError(f"cannot unpack {path} after line {number}: {error}.") from error
            if not line:
                break
            number += 1
            if len(line) > limits.bytes:
                raise UserError(
                    f"line {number} of {path} is longer than data.max_document_mb = "
                    f"{limits.document_mb} MB. Cut it, or raise that limit."
                )
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield decode(line, path, number)
            if number % 256 == 0:
                position = raw.tell()
                limits.tell(position - done)
                done = position
        limits.tell(raw.tell() - done)


def whole(path: Path, limits: Limits) -> str:
    """All of a file."""
    stream, raw = open_bytes(path)
    with raw, stream:
        try:
            content = stream.read(limits.bytes + 1)
        except (OSError, EOFError, lzma.LZMAError, ValueError, _zstd_error()) as error:
            raise UserError(f"cannot unpack {path}: {error}.") from error
        limits.tell(raw.tell())
    if len(content) > limits.bytes:
        raise UserError(
            f"{path} is longer than data.max_document_mb = {limits.document_mb} MB. "
            "Use data.documents: line or blank-line, or raise that limit."
        )
    return decode(content.removeprefix(b"\xef\xbb\xbf"), path, 1)


def decode(content: bytes, path: Path, line: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content[: error.start].count(b"\n")
        raise UserError(
            f"{path} is not UTF-8: line {line} holds the byte 0x{content[error.start]:02x}. "
            "Convert it, for example with iconv -t UTF-8."
        ) from error


def _zstd_error() -> type[Exception]:
    try:
        from zstandard import ZstdError
    except ModuleNotFoundError:
        return OSError
    return cast("type[Exception]", ZstdError)
