"""Manifests: the list of files that a run wrote into a folder, with sizes and hashes.

A folder is saved under a temporary name, gets its manifest and is then renamed, so a folder with a
manifest was complete once. Later the manifest answers two questions: is everything still there and
unchanged, and which files may be removed. A file that is not listed belongs to the user: it is
never removed and never overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import UserError
from ..measure import quantities
from ..outputs import STAGING, follow_umask, staged_name

MANIFEST = "manifest.json"
OLD = f"{STAGING}-old"  # prefix of a folder that is being replaced


def write_manifest(folder: Path) -> None:
    """List every file below the folder."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "hash": _hash(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def has_manifest(folder: Path) -> bool:
    """Whether a run wrote this folder."""
    return not folder.is_symlink() and (folder / MANIFEST).is_file()


def damage(folder: Path) -> str | None:
    """What is missing or changed since the folder was written, or None if it is intact."""
    try:
        listed = _listed(folder)
    except UserError as error:
        return str(error)
    for name, expected in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected.get("bytes"):
            return (
                f"{name} has {quantities.count(path.stat().st_size, 'byte')} instead of "
                f"{expected.get('bytes')}"
            )
        if _hash(path) != expected.get("hash"):
            return f"the content of {name} has changed"
    return None


def remove_written(folder: Path) -> list[Path]:
    """Remove the files that the manifest lists, and the folder if nothing else is in it.

    Returns the files that are left because a run did not write them.
    """
    if not has_manifest(folder):
        return foreign_files(folder)
    for name in _listed(folder):
        (folder / name).unlink(missing_ok=True)
    (folder / MANIFEST).unlink()
    remove_empty_folders(folder)
    return foreign_files(folder)


def foreign_files(folder: Path) -> list[Path]:
    """The files below a folder that its manifest does not list; links count as files."""
    if folder.is_symlink() or folder.is_file():
        return [folder]
    if not folder.is_dir():
        return []
    listed = {MANIFEST, *_listed(folder)} if has_manifest(folder) else set()
    return [
        path
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or not path.is_dir())
        and path.relative_to(folder).as_posix() not in listed
    ]


def remove_empty_folders(folder: Path) -> None:
    """Remove a folder and those below it, as far as they are empty."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def replace_folder(staging: Path, final: Path) -> None:
    """Rename a finished folder to its final name; the older one that a run wrote is replaced.

    Files in the older folder that no run wrote are moved into the new one. Where a name is taken,
    `.kept` is added to that of the moved file.
    """
    write_manifest(staging)
    follow_umask(staging)
    for path in [*staging.rglob("*"), staging]:
        _sync(path)
    old = final.with_name(f"{OLD}-{final.name}")
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise UserError(
            f"{final} is not a folder that a run wrote, so it is not replaced. Move it elsewhere "
            "and give the same command again."
        )
    if final.exists():
        final.rename(old)
    staging.rename(final)
    _sync(final.parent)
    discard_old(old, final)


def discard_old(old: Path, final: Path) -> None:
    """Remove a replaced folder; what a run did not write is moved into the new one."""
    if not old.is_dir() or old.is_symlink():
        return
    for path in foreign_files(old):
        target = final / path.relative_to(old)
        while target.is_symlink() or target.exists():
            target = target.with_name(f"{target.name}.kept")
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    remove_written(old)
    remove_empty_folders(old)


def clean_staging(folder: Path, names: set[str]) -> None:
    """After a crash, restore what was being replaced and remove what was half written.

    `names` are the final names a run uses in this folder: only their temporary names are touched.
    """
    for path in sorted(folder.glob(f"{STAGING}-*")):
        if path.is_symlink():
            continue
        if path.name.startswith(f"{OLD}-"):
            final = path.with_name(path.name.removeprefix(f"{OLD}-"))
            if final.name not in names:
                continue
            if final.exists():
                discard_old(path, final)
            else:
                path.rename(final)
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


def _hash(path: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            found.update(block)
    return found.hexdigest()


def _sync(path: Path) -> None:
    """Write a file or folder through to the disk, where the system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return  # not every system opens a folder
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
