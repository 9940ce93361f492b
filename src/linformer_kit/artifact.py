"""Artifacts: files and folders that a command makes, resumes and replaces, each whole or absent.

owner     what tells that an artifact is ours: a marker that names its kind, a digest, a manifest;
          anything else is the user's, and is neither replaced nor removed
identity  what must be equal to resume one
lock      one process at a time writes to it
staged    it is written under a temporary name, synced to the disk, and renamed
manifest  what was written into a folder, by which it is checked, replaced and removed later

What an artifact is called and what to do about an error are arguments: `title` and `remedy`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import UserError, shown, user_input

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

CHUNK = 2**20
MAKE_ROOM = (
    "What was there is intact; make room, or use another folder, and give the same command again."
)
LOCK = ".lock"
HOLDER = ".lock-holder"
WAIT = 1.0  # seconds for a process that has just taken the lock to write its name
STAGING = ".saving"  # prefix of temporary names beside the final one
OLD = f"{STAGING}-old"  # prefix of a folder that is being replaced
MANIFEST = "manifest.json"


def hashed(*parts: str | bytes | Path, size: int = 16) -> Any:
    """The hash of texts, bytes and the contents of files, to which more may be added."""
    found = hashlib.blake2b(digest_size=size)
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                while chunk := file.read(CHUNK):
                    found.update(chunk)
        else:
            found.update(part.encode() if isinstance(part, str) else part)
    return found


def digest(*parts: str | bytes | Path, size: int = 16) -> str:
    """Of texts, bytes and the contents of files, by which they are recognised later."""
    return str(hashed(*parts, size=size).hexdigest())


# Owner


def check_replaceable(
    path: Path, ours: Callable[[Path], bool], *, remedy: str = "Name another file with --out."
) -> None:
    """Refuse a path whose content would be lost: anything but a file that is `ours`.

    A path where nothing is, and an empty file, pass. A folder, a link, a pipe or a device, and a
    file of something else are refused. Call it before the work whose result is written, and again
    before the file is replaced if the work takes long.
    """
    with user_input(f"cannot write {path}", remedy=remedy):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise UserError(f"{path} is not a regular file: it is left alone. {remedy}")
        if path.exists() and path.stat().st_size and not ours(path):
            raise UserError(
                f"{path} exists and was not written by this command: it is left alone. {remedy}"
            )


def check_folder(
    path: Path,
    title: str,
    *,
    ours: Callable[[Path], bool],
    started: Callable[[Path], bool] = lambda path: False,
    remedy: str,
) -> None:
    """Refuse a folder that is neither new, nor empty, nor `ours`. Writes nothing.

    A folder that is not ours yet may hold locks, and what a killed start leaves: `started`.
    """
    with user_input(f"cannot write to {path}", remedy=remedy):
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: it is left alone. {remedy}")
        others = sorted(
            each.name
            for each in path.iterdir()
            if each.name not in (LOCK, HOLDER) and not started(each)
        )
        if others and not ours(path):  # in this order: another process may finish its first one
            more = " and more" if len(others) > 1 else ""
            raise UserError(
                f"{path} exists and is not {title}: it is left alone, for it holds "
                f"{others[0]}{more}. {remedy}"
            )


def not_writable(path: Path) -> Path | None:
    """The folder that keeps this user from writing below a path: itself, or the nearest above.

    None if there is no such folder.
    """
    place = path.absolute()
    while not os.path.lexists(place):
        place = place.parent
    return None if os.access(place, os.W_OK | os.X_OK) else place


def holds(path: Path, *markers: str) -> bool:
    """Whether one of the markers stands anywhere in a file."""
    wanted = [marker.encode() for marker in markers]
    overlap = max(map(len, wanted)) - 1  # a marker may lie across two chunks
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            content = before + chunk
            if any(marker in content for marker in wanted):
                return True
            before = content[-overlap:] if overlap else b""
    return False


# Identity


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first name whose value is not the same; None if there is none."""
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            return f"{name} is {shown(there.get(name))} there and {shown(here.get(name))} here"
    return None


class ArtifactFolder:
    """A folder of one kind: run, conversion, comparison, index.

    Its marker is a JSON object with the key `kind`, which also says what the folder is of.
    """

    path: Path
    kind: ClassVar[str]
    title: ClassVar[str]  # in messages, such as "a run's folder"
    remedy: ClassVar[str]

    @property
    def marker_file(self) -> Path:
        raise NotImplementedError

    def marker(self) -> dict[str, Any] | None:
        """What the marker says; None if there is none. A UserError if it may not be read."""
        try:
            found = json.loads(self.marker_file.read_bytes())
        except PermissionError as error:
            raise UserError(f"cannot read {self.marker_file}: {error.strerror}.") from error
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and found.get("kind") == self.kind else None

    @property
    def has_marker(self) -> bool:
        return self.marker() is not None

    def check_ours(self, *parts: str) -> None:
        """Refuse a folder of something else; `parts` are what a killed start may leave in it."""
        started = (self.marker_file.name, *parts)
        check_folder(
            self.path,
            self.title,
            ours=lambda _: self.has_marker,
            started=lambda path: path.name in parts or staged_name(path) in started,
            remedy=self.remedy,
        )

    def check_writable(self) -> None:
        """Refuse a folder that cannot be written, before hours of preparation. Writes nothing."""
        if (place := not_writable(self.path)) is not None:
            raise UserError(
                f"cannot write to {self.path}: {place} is not writable for this user. {self.remedy}"
            )

    def create(self) -> None:
        with user_input(f"cannot write {self.path}", remedy=self.remedy):
            self.marker_file.parent.mkdir(parents=True, exist_ok=True)

    def lock(self) -> ExitStack:
        """Let no other process write to the folder until the context is left."""
        home = self.marker_file.parent
        with user_input(f"cannot write to {home}", remedy=self.remedy):
            return lock(home / LOCK, self.path, holder=home / HOLDER, remedy=self.remedy)


# Lock


def lock(
    file: Path,
    what: Path,
    *,
    remedy: str,
    holder: Path | None = None,
    waiting: Callable[[], None] | None = None,
    remove: bool = False,
) -> ExitStack:
    """Take the lock of `what`, until the context is left; or say which process has it.

    The lock is the kernel's (flock), so it ends with the process that holds it: a killed process
    leaves `file` behind, but no lock. `holder` is a file that says who holds it, `waiting` is
    called now and then until it is free, and with `remove` no file is left.
    """
    from filelock import FileLock, Timeout

    if os.path.lexists(file) and not _is_empty(file):
        plain = file.is_file() and not file.is_symlink()
        raise UserError(
            f"{file}, the name of the lock of {what}, must be free or an empty file: got "
            f"{'a file with content' if plain else 'no regular file'}. It is left alone. Move it. "
            f"{remedy}"
        )
    held = FileLock(file)
    timeout = 0.0
    while not held.is_locked:
        try:
            held.acquire(timeout=timeout)
        except Timeout:
            if not os.path.lexists(file):  # not held by another process: it cannot be made
                file.touch(exist_ok=False)
                file.unlink()
            if waiting is None:
                raise UserError(
                    f"{what} is in use by {_name_in(holder)}. Wait until it has ended, stop it, "
                    f"or {remedy[0].lower()}{remedy[1:]}"
                ) from None
            waiting()
            timeout = 1.0
    stack = ExitStack()
    stack.callback(held.release)
    if remove:
        stack.callback(lambda: file.unlink(missing_ok=True) if _is_empty(file) else None)
    if holder is not None:
        stack.callback(holder.unlink, missing_ok=True)
        with stack, user_input(f"cannot write {holder}", remedy=remedy):
            holder.write_text(
                f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8"
            )
            return stack.pop_all()
    return stack


def _is_empty(path: Path) -> bool:
    """Whether a path is a regular file without content."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_size


def _name_in(holder: Path | None) -> str:
    """Who holds a lock."""
    end = time.monotonic() + WAIT
    while holder is not None:
        try:
            who = holder.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            who = ""
        if who:
            return who
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return "another process"


# Staged files


def staging_path(path: Path) -> Path:
    """The temporary name under which this process writes a file."""
    return path.with_name(f"{STAGING}-{os.getpid()}-{path.name}")


def staging_folder(path: Path) -> Path:
    """The temporary name of a folder, which several processes may write."""
    return path.with_name(f"{STAGING}-{path.name}")


def staged_name(path: Path) -> str | None:
    """The final name of a file that was left unfinished by a process that was killed."""
    found = re.fullmatch(rf"{re.escape(STAGING)}-\d+-(.+)", path.name)
    return found[1] if found and path.is_file() and not path.is_symlink() else None


def sync(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    if path.is_dir():
        for each in path.iterdir():
            sync(each)
    with suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def publish(staged: Path, final: Path) -> None:
    """Give what is complete its final name, in one step."""
    sync(staged)
    staged.replace(final)


def write_atomic(path: Path, content: str | bytes, *, remedy: str = MAKE_ROOM) -> None:
    """Write a file atomically: it is the old one or the new one, whatever happens."""
    staging = staging_path(path)
    try:
        staging.write_bytes(content.encode() if isinstance(content, str) else content)
        publish(staging, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}. {remedy}") from error
    finally:
        staging.unlink(missing_ok=True)


def json_bytes(values: object) -> bytes:
    """Values as readable JSON.

    A file name that is not UTF-8 holds lone surrogates, which cannot be encoded; they become the
    escapes of JSON, so that reading gives the same name again.
    """
    return escaped(f"{json.dumps(values, indent=1, ensure_ascii=False)}\n").encode()


def escaped(text: str) -> str:
    """Text with escapes, which JSON reads, for the bytes of a file name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def follow_umask(folder: Path) -> None:
    """Give the weights in a folder the mode of every other new file.

    safetensors writes them by way of a temporary file, which its owner alone may read.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o666 & ~mask)


# Manifest


def write_manifest(folder: Path) -> None:
    """List every file below the folder, with its size and digest."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "hash": digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def has_manifest(folder: Path) -> bool:
    """Whether a command wrote this folder whole."""
    return not folder.is_symlink() and (folder / MANIFEST).is_file()


def damage(folder: Path) -> str | None:
    """What is missing or changed since the folder was written, or None if it is intact."""
    try:
        listed = _listed(folder)
    except UserError as error:
        return str(error)
    for name, expected in listed.items():
        path = folder / name
        if (problem := size_problem(path, expected.get("bytes"))) is not None:
            return f"{name} {problem}"
        if digest(path) != expected.get("hash"):
            return f"the content of {name} has changed"
    return None


def size_problem(path: Path, expected: Any) -> str | None:
    """Why a file cannot be the one of so many bytes that was written, or None."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    one = "" if size == 1 else "s"
    return None if size == expected else f"has {size:,} byte{one} instead of {expected}"


def remove_written(folder: Path) -> list[Path]:
    """Remove the files that the manifest lists, and the folder if nothing else is in it.

    Returns the files that are left because they are the user's.
    """
    if has_manifest(folder):
        remove_files(folder, [*_listed(folder), MANIFEST])
    return foreign_files(folder)


def remove_files(folder: Path, names: Collection[str]) -> None:
    """Remove these files in their order, and all folders that are empty then."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    remove_empty_folders(folder)


def foreign_files(folder: Path, own: Collection[str] | None = None) -> list[Path]:
    """The files below a folder that are not `own`, those of its manifest; links count as files."""
    if folder.is_symlink() or folder.is_file():
        return [folder]
    if own is None:
        own = {MANIFEST, *_listed(folder)} if has_manifest(folder) else ()
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_symlink()
        or (not path.is_dir() and path.relative_to(folder).as_posix() not in own)
    ]


def remove_empty_folders(folder: Path) -> None:
    """Remove a folder and those below it, as far as they are empty."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def publish_folder(staged: Path, final: Path) -> None:
    """Give a finished folder its manifest and its name; the older one that has one is replaced.

    Files of the user in the older folder are moved into the new one. Where a name is taken,
    `.kept` is added to that of the moved file.
    """
    write_manifest(staged)
    follow_umask(staged)
    old = final.with_name(f"{OLD}-{final.name}")
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise UserError(
            f"{final} is not a folder that a run wrote, so it is not replaced. Move it elsewhere "
            "and give the same command again."
        )
    if final.exists():
        publish(final, old)
    publish(staged, final)
    _discard(old, final)


def _discard(old: Path, final: Path) -> None:
    """Remove a replaced folder; what is the user's is moved into the new one."""
    if not old.is_dir() or old.is_symlink():
        return
    for path in foreign_files(old):
        target = final / path.relative_to(old)
        while target.is_symlink() or target.exists():
            target = target.with_name(f"{target.name}.kept")
        target.parent.mkdir(parents=True, exist_ok=True)
        publish(path, target)
    remove_written(old)
    remove_empty_folders(old)


def clean_staging(folder: Path, names: Collection[str]) -> None:
    """After a crash, restore what was being replaced and remove what was half written.

    `names` are the final names that are used in this folder: only their temporary names are
    touched.
    """
    for path in sorted(folder.glob(f"{STAGING}-*")):
        if path.is_symlink():
            continue
        name = path.name.removeprefix(f"{OLD}-")
        if path.name != name:
            if name in names and (folder / name).exists():
                _discard(path, folder / name)
            elif name in names:
                publish(path, folder / name)
        elif staged_name(path) in names:
            path.unlink()
        elif path.is_dir() and path.name.removeprefix(f"{STAGING}-") in names:
            shutil.rmtree(path)


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of a manifest; one that lists a path outside its folder is refused."""
    file = folder / MANIFEST
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))["files"]
        for name, expected in listed.items():
            parts = PurePosixPath(name)
            outside = parts.is_absolute() or ".." in parts.parts or not parts.parts
            if outside or not isinstance(expected, dict):
                raise ValueError(f"{name!r} is not a file below the folder")
            through = [folder.joinpath(*parts.parts[: i + 1]) for i in range(len(parts.parts))]
            if any(path.is_symlink() for path in through):
                raise ValueError(f"{name!r} is a link")
    except FileNotFoundError:
        raise UserError(f"{file} is missing") from None
    except Exception as error:  # whatever a damaged file leads to
        raise UserError(f"{file} is damaged ({type(error).__name__}: {error})") from error
    return dict(listed)
