"""How far a job on a file is: OUT.predict.json, beside the answers.

It is replaced after the answers it counts are on the disk. A killed job therefore goes back to its
last entry, and what was written after it is written again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..artifact import difference, digest, hashed, json_bytes, lock, write_atomic
from ..data.counts import share
from ..errors import UserError, user_input
from ..measure import quantities

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

KIND = "linformer-kit predictions"
NAME_ANOTHER = "Name another file with --out."


@dataclass
class Totals:
    """The counts of a job."""

    rows: int = 0  # read from the input, whatever became of them
    answered: int = 0
    failed: int = 0  # written without an answer
    left_out: int = 0  # could not be read, and are not written
    longer: int = 0  # read by policy: not whole, in pieces, or by an extended model
    tokens_read: int = 0
    tokens_total: int = 0

    def lines(self, policy: str) -> list[str]:
        """What is said at the end."""
        said = [f"{self.answered:,} of {quantities.count(self.rows, 'row')} answered"]
        if self.failed:
            said.append(f"{self.failed:,} written without an answer, see prediction_error")
        if self.left_out:
            said.append(f"{self.left_out:,} could not be read and are left out")
        lines = ["; ".join(said) + "."]
        unread = self.tokens_total - self.tokens_read
        if self.longer:
            lines.append(
                f"{quantities.count(self.longer, 'text')} longer than the model reads "
                f"(on_overflow: {policy})."
            )
        if unread:
            lines.append(
                f"{share(unread, self.tokens_total)} of the tokens ({unread:,} of "
                f"{self.tokens_total:,}) were not read."
            )
        return lines

    @property
    def complete(self) -> bool:
        return not self.failed and not self.left_out


@dataclass
class Journal:
    """The state of a job: what it is, how far it is, and where its answers end."""

    path: Path
    job: dict[str, Any]
    position: int = 0
    totals: Totals = field(default_factory=Totals)
    finished: bool = False
    read: Any = field(default_factory=hashed)  # of the rows
    digest: str | None = None  # of the rows that were read before
    written: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> state at the end
    digest_of: str = "rows"  # "texts" in journals of earlier versions: without the other columns

    @classmethod
    def of(cls, out: Path, job: dict[str, Any], *more: Path) -> Journal:
        """The journal of a job, begun or new; that of another job is refused.

        `more` are files that the job writes beside `out`.
        """
        journal = cls(out.with_name(f"{out.name}.predict.json"), job)
        partial = partial_of(out)
        if not os.path.lexists(journal.path):
            for path in (out, partial, *more):
                if os.path.lexists(path):
                    raise UserError(
                        f"{path} exists and was not written by this command: it is left alone. "
                        f"{NAME_ANOTHER}"
                    )
            return journal
        with user_input(f"cannot read {journal.path}", remedy=NAME_ANOTHER):
            known = json.loads(journal.path.read_bytes())
            if known.get("kind") != KIND:
                raise UserError(
                    f"{journal.path} is another file's: it is left alone. " + NAME_ANOTHER
                )
            there = {name: known["job"].get(name) for name in job}
            if found := difference(there, job):
                raise UserError(f"{out} holds the answers of another job: {found}. {NAME_ANOTHER}")
            journal.position = int(known["position"])
            journal.totals = Totals(**known["totals"])
            journal.digest = known["read"]
            journal.digest_of = known.get("digest_of", "texts")
            journal.finished = bool(known["finished"]) and out.exists()
            journal.written = known.get("written", {})
            if journal.finished:
                journal.check_unchanged(out, *more)
        if not journal.finished and os.path.lexists(out):
            raise UserError(
                f"{out} exists and the job that {journal.path} describes has not written it: it is "
                f"left alone. {NAME_ANOTHER}"
            )
        if journal.position and not partial.exists() and not journal.finished:
            raise UserError(
                f"{partial}, the answers so far, is gone. Remove {journal.path} to start again."
            )
        return journal

    @property
    def same_rows(self) -> bool:
        """Whether what was read now is what was read before."""
        return self.digest is None or bool(self.read.hexdigest() == self.digest)

    def save(self, *, finished: bool = False) -> None:
        values = {
            "kind": KIND,
            "job": self.job,
            "position": self.position,
            "totals": asdict(self.totals),
            "read": self.read.hexdigest(),
            "digest_of": self.digest_of,
            "finished": finished,
            "written": self.written if finished else {},
        }
        write_atomic(self.path, json_bytes(values))
        self.finished = finished

    def seal(self, *paths: Path) -> None:
        """Record the files of a finished job as they were written."""
        self.written = {path.name: _state(path) for path in paths}
        self.save(finished=True)

    def check_unchanged(self, *paths: Path) -> None:
        """Refuse files that are not as a finished job wrote them.

        A journal of an earlier version, or of a job that was killed before `seal`, has no record.
        """
        for path in paths:
            known = self.written.get(path.name)
            if known is None:
                continue
            found = "no file"
            if path.is_file():
                size, time = path.stat().st_size, path.stat().st_mtime_ns
                if size == known["size"]:
                    if time == known["mtime_ns"] or digest(path) == known["digest"]:
                        continue
                    found = "other content of the same size"
                else:
                    found = f"{size:,} bytes"
            raise UserError(
                f"{path} must be as the finished job wrote it, with {known['size']:,} bytes: got "
                f"{found}. It is left alone. Restore it, or name another file with --out."
            )


def _state(path: Path) -> dict[str, Any]:
    with user_input(f"cannot read {path}"):
        status = path.stat()
        return {
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "digest": digest(path),
        }


def partial_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def locked(out: Path) -> ExitStack:
    """One process at a time writes a file of answers."""
    with user_input(f"cannot write {out}", remedy=NAME_ANOTHER):
        return lock(out.with_name(f".{out.name}.lock"), out, remedy=NAME_ANOTHER, remove=True)
