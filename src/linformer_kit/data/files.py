"""Files the user has: found by name, folder or glob, decompressed and read a line at a time.

Nothing is held but one line (or one document), so memory does not grow with the corpus, and a line
longer than the limit is refused before it is read whole. Only regular files are opened: a FIFO, a
socket or a device could block for ever or never end.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from ..errors import UserError, user_input
from .decompress import CODECS, Decompressed, Expansion

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ..config.schema import Format

PACKED = tuple(CODECS)
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".text")
BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
}
SUFFIXES = (*TEXT_SUFFIXES, *BY_SUFFIX)
STDIN = "-"  # the name of standard input
MB = 1_000_000
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def find(source: str) -> list[Path]:
    """The files behind a name: a file, a folder (with all below it) or a glob; in sorted order.

    Links to folders are followed, each folder is read once. A glob matches files, not folders.
    """
    if not source.strip():
        raise UserError("the name of a file, a folder or a glob must not be empty: got none.")
    with user_input(f"cannot read {source}"):
        path = Path(source).expanduser()
        if path.is_dir():
            found = sorted(one for one in below(path) if kind_of(one) in SUFFIXES)
            if not found:
                raise UserError(
                    f"the folder {source} holds no file to read: got none that ends in "
                    f"{', '.join(SUFFIXES)} (or these with {', '.join(PACKED)})."
                )
        elif os.path.lexists(path):
            found = [path]
        elif any(sign in source for sign in "*?["):
            root = Path(path.anchor) if path.is_absolute() else Path()
            matches = sorted(root.glob(str(path.relative_to(path.anchor))))
            found = [match for match in matches if not match.is_dir()]
            if not found:
                raise UserError(f"no file matches {source}.")
        else:
            raise UserError(
                f"there is no file or folder {source}. Name your own in data.train (and in "
                "data.validation, data.test). If it belongs to a shipped configuration: linformer "
                "configs NAME copies it, and its first lines say where its data come from."
            )
    for file in found:
        size_of(file)
    return found


def left_out(source: str) -> list[Path]:
    """The files of a folder that `find` does not read, because of how their names end."""
    path = Path(source).expanduser()
    with user_input(f"cannot read {source}"):
        if not path.is_dir():
            return []
        return sorted(each for each in below(path) if kind_of(each) not in SUFFIXES)


def below(folder: Path, *, leaving: list[Path] | None = None) -> Iterator[Path]:
    """Everything in a folder and below it that is no folder.

    Links to folders are followed, each folder is read once. With a list `leaving`, links that lead
    out of the folder are added to it instead.
    """

    def refuse(error: OSError) -> None:
        raise error

    def stays(path: Path) -> bool:
        if leaving is None or not path.is_symlink():
            return True
        if Path(os.path.realpath(path)).is_relative_to(root):  # resolve() raises on a loop
            return True
        leaving.append(path)
        return False

    root = folder.resolve()
    seen: set[tuple[int, int]] = set()
    for name, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        status = Path(name).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back, or a second link
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(one for one in folders if stays(Path(name, one)))
        yield from (path for file in names if stays(path := Path(name, file)))


def kind_of(path: Path) -> str:
    """The suffix that tells the format, without the compression's."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def format_of(path: Path, format: Format = "auto") -> Format:  # noqa: A002  (the name of the key)
    """The format of a file: as it is given, or by the file's suffix."""
    return BY_SUFFIX.get(kind_of(path), "text") if format == "auto" else format


def shown_name(name: str) -> str:
    return "standard input" if name == STDIN else name


@dataclass
class Limits:
    """How long one piece may be, and whom to tell how many bytes of the files are done."""

    document_mb: int = 64
    tell: Callable[[int], None] = field(default=lambda size: None)

    @property
    def bytes(self) -> int:
        return self.document_mb * MB

    def too_long(self, remedy: str = "Cut it") -> str:
        """The problem of a piece beyond the limit, without its subject."""
        return (
            f"is longer than data.max_document_mb = {self.document_mb} MB. {remedy}, or train with "
            "a higher limit."
        )


def size_of(path: Path) -> int:
    """The bytes of a regular file; anything else is refused."""
    with user_input(f"cannot read {path}"):
        try:
            status = path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                raise UserError(
                    f"cannot read {path}: it is a link to {path.readlink()}, which does not exist. "
                    "Remove the link, or restore the file."
                ) from None
            raise
    _check_regular(path, status.st_mode)
    return status.st_size


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise UserError(f"{path} must be a regular file: got {kind}. Write its content to a file.")


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read; anything else is refused without waiting for it."""
    size_of(path)

    def at_once(name: str, flags: int) -> int:  # a FIFO in its place since then does not block
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with user_input(f"cannot read {path}"):
        file = open(path, "rb", opener=at_once)  # noqa: SIM115  (the caller closes it)
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
    except UserError:
        file.close()
        raise
    return file


def open_bytes(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """The decompressed stream, and the file under it (whose position tells how far we are)."""
    codec = CODECS.get(path.suffix.lower())
    if codec is not None:
        try:
            codec.decoder()
        except ModuleNotFoundError:
            raise UserError(f"{path} needs the package zstandard: pip install zstandard") from None
    raw = open_regular(path)
    if codec is None:
        return raw, raw
    expansion = Expansion(path, os.fstat(raw.fileno()).st_size)
    stream = io.BufferedReader(Decompressed(raw, codec, expansion), 1 << 20)
    return cast("IO[bytes]", stream), raw


def numbered_lines(name: str, limits: Limits) -> Generator[tuple[int, bytes | None]]:
    """The lines of a file or of standard input; None for one that is longer than the limit."""
    path = Path(name)
    if name == STDIN:
        stream = raw = sys.stdin.buffer
    else:
        stream, raw = open_bytes(path)
    limit, done, number, size = limits.bytes, 0, 0, 0  # size: of the lines since `tell`
    skipping = False  # the rest of a line that is too long
    with raw, stream:
        while True:
            try:
                line = stream.readline(limit + 1)
            except Exception:
                what = f"cannot read {shown_name(name)} after line {number}"
                with user_input(what, remedy=_remedy(path)):
                    raise
            if not line:
                break
            size += len(line)
            if not skipping:
                number += 1
                whole = line.removeprefix(BOM) if number == 1 else line
                yield number, whole if len(line) <= limit else None
            skipping = len(line) > limit and not line.endswith(b"\n")
            if name != STDIN and size > 1 << 16:
                position, size = raw.tell(), 0
                limits.tell(position - done)
                done = position
        if name != STDIN:
            limits.tell(raw.tell() - done)


def lines(path: Path, limits: Limits) -> Iterator[str]:
    """The lines of a file with their ends, decoded as UTF-8."""
    for number, line in numbered_lines(str(path), limits):
        try:
            text = decode_line(number, line, limits)
        except UserError as error:
            raise UserError(f"line {number} of {path} {error}") from error
        yield text


def whole(path: Path, limits: Limits) -> str:
    """All of a file."""
    stream, raw = open_bytes(path)
    content = bytearray()
    with raw, stream:
        with user_input(f"cannot read {path}", remedy=_remedy(path)):
            while chunk := stream.read(MB):
                content += chunk
                if len(content) > limits.bytes:
                    shorter = "Use data.documents: line or blank-line"
                    raise UserError(f"{path} {limits.too_long(shorter)}")
        limits.tell(raw.tell())
    try:
        return _decode(bytes(content).removeprefix(BOM), 1, inside=True)
    except UserError as error:
        raise UserError(f"{path} {error}") from error


def decode_line(number: int, line: bytes | None, limits: Limits, row: int = 0) -> str:
    """The text of a numbered line. What is wrong with it is a `UserError` without its subject,
    about the row that begins at line `row`; the line itself if 0.
    """
    if line is None:
        raise UserError(limits.too_long())
    return _decode(line, number, inside=0 < row != number)


def _decode(content: bytes, line: int, *, inside: bool) -> str:
    """UTF-8 text that begins at `line`; inside a row or file, a problem names its line."""
    try:
        text = content.decode("utf-8")
        if "\0" not in text:
            return text
        place, what = content.index(0), ""
    except UnicodeDecodeError as error:
        place, what = error.start, f"is not UTF-8: {{}} holds the byte 0x{content[error.start]:02x}"
    if line == 1 and content.startswith(UTF16):
        place, what = 0, "is not UTF-8: {} begins like UTF-16"
    elif (nul := content.find(0)) >= 0:
        place = nul
        what = "is not text: {} holds a NUL byte, as binary files and UTF-16 do"
    where = f"line {line + content[:place].count(10)}" if inside else "it"
    source = "" if "byte 0x" in what else "-f UTF-16 "
    raise UserError(f"{what.format(where)}. Convert it, for example with iconv {source}-t UTF-8.")


def _remedy(path: Path) -> str:
    if path.suffix.lower() not in PACKED:
        return ""
    return "It may be truncated, damaged or of another format: copy or compress it again."
