"""A manifest lists what a run wrote: it finds damage, and only what it lists is ever removed."""

from __future__ import annotations

import json

import pytest

from linformer_kit.errors import UserError
from linformer_kit.runs.manifest import (
    MANIFEST,
    clean_staging,
    damage,
    remove_written,
    replace_folder,
    write_manifest,
)


@pytest.fixture
def written(tmp_path):
    folder = tmp_path / "best"
    (folder / "deeper").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "deeper/config.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_an_untouched_folder_is_intact(written):
    assert damage(written) is None


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"weight"), "6 bytes instead of 7"),
        (lambda f: (f / "model.safetensors").write_bytes(b"WEIGHTS"), "content of model.safe"),
        (lambda f: (f / MANIFEST).unlink(), "is missing"),
        (lambda f: (f / MANIFEST).write_text("[]"), "is damaged"),
        (lambda f: (f / MANIFEST).write_bytes(b"\xff\x00"), "is damaged"),
        (lambda f: (f / MANIFEST).write_text('{"files": ' * 100_000), "is damaged"),
        (lambda f: (f / MANIFEST).write_text('{"files": {"../../a": {}}}'), "not a file below"),
        (lambda f: (f / MANIFEST).write_text('{"files": {"/etc/passwd": {}}}'), "not a file below"),
    ],
)
def test_damage_is_named(written, break_it, message):
    break_it(written)
    assert message in damage(written)


def test_only_listed_files_are_removed(written):
    notes = written / "deeper/notes.txt"
    notes.write_text("mine")
    assert remove_written(written) == [notes]
    assert [p for p in written.rglob("*") if p.is_file()] == [notes]


def test_a_folder_of_listed_files_alone_is_removed_whole(written):
    assert remove_written(written) == []
    assert not written.exists()


def test_a_manifest_that_names_files_outside_removes_nothing(tmp_path, written):
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    (written / MANIFEST).write_text(json.dumps({"files": {"../thesis.txt": {"bytes": 13}}}))
    with pytest.raises(UserError, match="damaged"):
        remove_written(written)
    assert thesis.read_text() == "years of work"


def test_links_are_never_followed(tmp_path, written):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("mine")
    (written / "deeper/config.json").unlink()
    (written / "deeper").rmdir()
    (written / "deeper").symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        remove_written(written)
    assert (outside / "config.json").read_text() == "mine"


def test_a_replaced_folder_keeps_the_users_files(tmp_path, written):
    (written / "notes.txt").write_text("mine")
    staging = tmp_path / ".saving-best"
    staging.mkdir()
    (staging / "model.safetensors").write_bytes(b"new")
    replace_folder(staging, written)
    assert (written / "notes.txt").read_text() == "mine"
    assert (written / "model.safetensors").read_bytes() == b"new"
    assert damage(written) is None
    assert {p.name for p in tmp_path.iterdir()} == {"best"}


def test_a_users_file_with_the_name_of_a_runs_is_kept_beside_it(tmp_path):
    final, staging = tmp_path / "best", tmp_path / ".saving-best"
    for folder, text in ((final, b"mine"), (staging, b"new")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(text)
    replace_folder(staging, final)
    assert (final / "model.safetensors").read_bytes() == b"new"
    assert (final / "model.safetensors.kept").read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_a_link_in_the_place_of_a_folder_is_not_replaced(tmp_path, kind):
    final, staging = tmp_path / "best", tmp_path / ".saving-best"
    staging.mkdir()
    (tmp_path / "other").mkdir()
    final.write_text("mine") if kind == "file" else final.symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="not a folder that a run wrote"):
        replace_folder(staging, final)
    assert final.is_symlink() or final.read_text() == "mine"


def test_after_a_crash_the_old_folder_comes_back_and_foreign_names_stay(tmp_path, written):
    written.rename(tmp_path / ".saving-old-best")
    (tmp_path / ".saving-best").mkdir()
    (tmp_path / ".saving-best/half").write_bytes(b"")
    (tmp_path / ".saving-71-run.json").write_text("half")
    mine = {".saving-private", ".saving-71-private", ".saving-run.json"}
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".saving-71-best").mkdir()  # only files are staged with the number of a process
    clean_staging(tmp_path, {"best", "last", "run.json"})
    assert damage(written) is None
    assert {p.name for p in tmp_path.iterdir()} == {"best", ".saving-71-best", *mine}
