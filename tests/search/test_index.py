"""An index gives the nearest passages, follows the documents, and refuses what is not its own."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from sentence_transformers import SentenceTransformer

from linformer_kit.errors import UserError
from linformer_kit.search import build as builds
from linformer_kit.search import embedder as embedders
from linformer_kit.search import index as indexes
from linformer_kit.search.build import update
from linformer_kit.search.embedder import Embedder
from linformer_kit.search.index import Index
from linformer_kit.search.passages import passage_text

from .conftest import save_model


@pytest.fixture(scope="session")
def embedder(model):
    return Embedder(model)


def build(documents, out, embedder, **options):
    said = []
    changes = update(documents, out, embedder, passage=12, say=said.append, **options)
    return changes, said


def test_passages_cover_the_whole_text_with_their_characters(embedder, documents):
    text = (documents / "sub/cat.md").read_bytes().decode()
    pieces = embedder.passages(text, 12)
    assert pieces[0].start == 0
    assert text[pieces[-1].start : pieces[-1].end].endswith("fish")
    covered = set()
    for piece in pieces:
        assert len(piece.ids) <= 12
        covered |= set(range(piece.start, piece.end))
    missing = "".join(character for at, character in enumerate(text) if at not in covered)
    assert not missing.strip()


def test_passages_ask_for_the_tokens_of_a_text_once(embedder, monkeypatch):
    """Each question makes a list of all of them, which took half a minute for a novel."""
    asked, encode = [], embedders.encode_long

    class Counted:
        def __init__(self, encoding):
            self.encoding = encoding

        def __getattr__(self, name):
            asked.append(name)
            return getattr(self.encoding, name)

    monkeypatch.setattr(embedders, "encode_long", lambda *args: Counted(encode(*args)))
    assert len(embedder.passages("the dog runs " * 100, 12)) > 20
    assert sorted(asked) == ["ids", "offsets"]


def test_a_model_of_ours_gives_the_vectors_of_sentence_transformers(embedder, tmp_path):
    changed = shutil.copytree(embedder.folder, tmp_path / "changed")
    about = changed / "config_sentence_transformers.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"prompts": {}}))
    other = Embedder(changed)
    assert not isinstance(embedder.model, SentenceTransformer)
    assert isinstance(other.model, SentenceTransformer)
    assert (embedder.longest, embedder.size) == (other.longest, other.size)
    rows = [piece.ids for piece in embedder.passages("the dog runs of the old road " * 9, 12)]
    np.testing.assert_allclose(embedder.vectors(rows), other.vectors(rows), atol=1e-6)
    (changed / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 32, "pooling_mode_max_tokens": true}'
    )
    assert np.abs(Embedder(changed).vectors(rows) - other.vectors(rows)).max() > 0.01


def test_vectors_do_not_depend_on_the_batch(embedder, documents):
    rows = [p.ids for p in embedder.passages((documents / "sub/cat.md").read_text(), 12)]
    together = embedder.vectors(rows)
    alone = np.concatenate([embedder.vectors([row]) for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)


def test_a_passage_is_found_by_its_own_text(embedder, documents, tmp_path):
    changes, said = build(documents, tmp_path / "i", embedder)
    assert (changes.new, changes.removed) == (3, 0)
    assert "1 of 4 files are not read" in said[0]
    assert "photo.png" in said[0]
    assert "3 of 3 documents to read, 0.0 MB." in said[1]
    found = Index(tmp_path / "i")
    vector, _ = embedder.query("two bird three bird")
    best = found.search(vector, 3)
    assert (best[0].path, best[0].start, best[0].end) == ("bird.txt", 0, 19)
    assert best[0].score == pytest.approx(1.0, abs=1e-5)
    assert len({hit.path for hit in best}) == 3
    assert [hit.score for hit in best] == sorted((hit.score for hit in best), reverse=True)


def test_an_update_reads_only_what_has_changed(embedder, documents, tmp_path):
    out = tmp_path / "i"
    build(documents, out, embedder)
    (out / "mine.txt").write_text("mine")
    again, _ = build(documents, out, embedder)
    assert (again.unchanged, again.tokens) == (3, 0)
    (documents / "dog.txt").rename(documents / "hound.txt")  # moved: known by its content
    (documents / "bird.txt").write_text("a new fish")
    (documents / "tree.txt").write_text("the tree of the hill")
    (documents / "sub/cat.md").unlink()
    changes, _ = build(documents, out, embedder)
    assert (changes.new, changes.changed, changes.removed, changes.unchanged) == (2, 1, 2, 0)
    assert changes.tokens == 5 + 7  # the two new texts, in their frames
    anew = tmp_path / "anew"
    build(documents, anew, embedder)
    np.testing.assert_allclose(Index(out).vectors, Index(anew).vectors, atol=1e-6)
    np.testing.assert_array_equal(Index(out).places, Index(anew).places)
    assert (out / "mine.txt").read_text() == "mine"
    generation = json.loads((out / "index.json").read_text())["generation"]
    assert {path.name for path in out.iterdir()} == {
        ".lock", "index.json", "mine.txt", f"vectors-{generation}.npy", f"places-{generation}.npy",
    }  # fmt: skip


def test_what_cannot_be_read_is_said_and_the_rest_is_indexed(embedder, documents, tmp_path):
    (documents / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (documents / "empty.txt").write_text(" \n")
    _, said = build(documents, tmp_path / "i", embedder)
    assert any("latin.txt: not read" in line and "not UTF-8" in line for line in said)
    assert any("empty.txt: not read: it is empty" in line for line in said)
    assert len(Index(tmp_path / "i").about["documents"]) == 3


def test_links_out_of_the_folder_are_named_and_what_is_no_file(embedder, documents, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "far.txt").write_text("the river of the hill")
    (documents / "folder").symlink_to(linked)
    (documents / "again").symlink_to(documents)
    (documents / "gone.txt").symlink_to("nowhere.txt")
    (documents / "loop.txt").symlink_to("loop.txt")
    (documents / "near.txt").symlink_to("sub/cat.md")
    (documents / "sub/far.txt").symlink_to(linked / "far.txt")
    os.mkfifo(documents / "pipe.txt")
    inside = ["bird.txt", "dog.txt", "near.txt", "sub/cat.md"]
    for follow, paths in ((False, []), (True, ["folder/far.txt", "sub/far.txt"])):
        _, said = build(documents, tmp_path / "i", embedder, follow_links=follow)
        listed = [one["path"] for one in Index(tmp_path / "i").about["documents"]]
        assert listed == sorted([*inside, *paths])
        links = f"2 links lead out of {documents} and are not followed: folder, sub/far.txt."
        assert any(line.startswith(links) for line in said) == (not follow)
    assert any("gone.txt: not read" in line and "does not exist" in line for line in said)
    assert any("pipe.txt: not read" in line and "a FIFO" in line for line in said)


def test_a_document_whose_name_is_not_utf8_is_found(embedder, tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    name = os.fsdecode(b"caf\xe9.txt")
    (documents / name).write_text("two bird three bird")
    build(documents, tmp_path / "i", embedder)
    found = Index(tmp_path / "i")
    (hit,) = found.search(embedder.query("two bird three bird")[0], 3)
    assert hit.path == name
    assert passage_text(found, hit) == ("two bird three bird", None)
    again, _ = build(documents, tmp_path / "i", embedder)
    assert again.unchanged == 1


def test_a_document_that_is_empty_now_counts_as_removed(embedder, documents, tmp_path):
    build(documents, tmp_path / "i", embedder)
    (documents / "dog.txt").write_text("")
    changes, _ = build(documents, tmp_path / "i", embedder)
    assert (changes.removed, changes.unchanged) == (1, 2)


def test_that_most_documents_are_gone_has_to_be_confirmed(embedder, documents, tmp_path):
    out = tmp_path / "i"
    build(documents, out, embedder)
    before = (out / "index.json").read_bytes()
    documents.rename(tmp_path / "old")
    documents.mkdir()
    (documents / "tree.txt").write_text("the tree of the hill")
    (documents / "hound.txt").write_bytes((tmp_path / "old/dog.txt").read_bytes())
    with pytest.raises(UserError) as refused:
        build(documents, out, embedder)
    gone = f"2 of the 3 documents of the index {out} are gone from {documents}"
    assert f"{gone} (bird.txt, sub/cat.md): nothing is changed." in str(refused.value)
    assert "--allow-removals" in str(refused.value)
    assert (out / "index.json").read_bytes() == before
    changes, _ = build(documents, out, embedder, allow_removals=True)
    assert (changes.new, changes.removed) == (2, 3)


def test_tokens_are_counted_once_though_passages_overlap(embedder, tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/a.txt").write_text("dog " * 100)
    changes, _ = build(tmp_path / "documents", tmp_path / "i", embedder)
    assert changes.tokens == 102  # with <s> and </s>
    assert Index(tmp_path / "i").about["documents"][0]["tokens"] == 102


def test_text_without_a_token_is_said_and_no_query(embedder, documents, tmp_path, monkeypatch):
    monkeypatch.setattr(embedder, "tokenizer", without_controls(embedder.tokenizer))
    (documents / "invisible.txt").write_text("\u200b")
    _, said = build(documents, tmp_path / "i", embedder)
    assert any("invisible.txt: not read: it has no token" in line for line in said)
    with pytest.raises(UserError, match=r"the query has no token for this model: got '\\u200b'"):
        embedder.query("\u200b")


def without_controls(tokenizer):
    """The same tokenizer with the normalizer of BERT, which removes control characters."""
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    return other


def test_a_query_that_is_not_valid_text_is_refused(embedder):
    with pytest.raises(UserError, match="lone surrogate"):
        embedder.query("caf\udce9")


def test_another_model_another_passage_and_a_foreign_folder_are_refused(
    embedder, documents, tmp_path
):
    out = tmp_path / "i"
    build(documents, out, embedder)
    other = Embedder(save_model(tmp_path / "other", seed=1))
    with pytest.raises(UserError, match="was built by another model than"):
        build(documents, out, other)
    with pytest.raises(UserError, match="was built by another model than"):
        Index(out).check_model(other)
    with pytest.raises(UserError, match="has passages of 12 tokens: got 8"):
        update(documents, out, embedder, passage=8, say=print)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not an index: it is left alone"):
        build(documents, tmp_path / "mine", embedder)
    with pytest.raises(UserError, match="is no index"):
        Index(tmp_path / "mine")
    (out / "index.json").write_text('{"kind": "x"}')
    with pytest.raises(UserError, match=r"index\.json is of something else"):
        Index(out)


def test_documents_of_another_folder_are_refused_unless_they_were_moved(
    embedder, documents, tmp_path
):
    out, moved = tmp_path / "i", tmp_path / "moved"
    with pytest.raises(UserError, match="--documents-moved is for an index that exists"):
        update(documents, out, embedder, passage=12, say=print, documents_moved=True)
    assert not out.exists()
    build(documents, out, embedder)
    before = (out / "index.json").read_bytes()
    shutil.copytree(documents, moved)
    with pytest.raises(UserError) as refused:
        build(moved, out, embedder)
    assert f"is of the documents in {documents}: got {moved}." in str(refused.value)
    assert "--documents-moved" in str(refused.value)
    assert (out / "index.json").read_bytes() == before
    changes = update(moved, out, embedder, passage=12, say=print, documents_moved=True)
    assert (changes.unchanged, changes.removed, changes.tokens) == (3, 0, 0)
    again, _ = build(moved, out, embedder)
    assert again.unchanged == 3
    with pytest.raises(UserError, match="there is no folder"):
        build(tmp_path / "none", out, embedder)


def test_the_same_folder_by_another_spelling_is_the_same(
    embedder, documents, tmp_path, monkeypatch
):
    build(documents, tmp_path / "i", embedder)
    (tmp_path / "link").symlink_to(documents)
    monkeypatch.chdir(tmp_path)
    for spelling in ("documents", "./documents/", "link", "documents/../link/", "documents/sub/.."):
        changes, _ = build(Path(spelling), tmp_path / "i", embedder)
        assert (changes.unchanged, changes.removed) == (3, 0), spelling


def test_files_of_two_builds_are_refused(embedder, documents, tmp_path):
    build(documents, tmp_path / "i", embedder)
    (documents / "bird.txt").write_text("two fish three fish")  # of the same shape
    build(documents, tmp_path / "other", embedder)
    for name in ("vectors-1.npy", "places-1.npy"):
        ours = (tmp_path / "i" / name).read_bytes()
        (tmp_path / "i" / name).write_bytes((tmp_path / "other" / name).read_bytes()[:-1] + b"x")
        wrong = rf"{name} must have the digest .* that is in index\.json: got .*\. Build it again: "
        with pytest.raises(UserError, match=wrong):
            Index(tmp_path / "i")
        with pytest.raises(UserError, match=wrong):
            build(documents, tmp_path / "i", embedder)
        (tmp_path / "i" / name).write_bytes(ours)
    Index(tmp_path / "i")


def test_an_index_without_digests_is_read_and_brought_up_to_date(embedder, documents, tmp_path):
    out = tmp_path / "i"
    build(documents, out, embedder)
    about = json.loads((out / "index.json").read_text()) | {"version": 1}
    del about["digests"], about["replaces"], about["digest"]
    (out / "index.json").write_text(json.dumps(about))
    (out / ".lock").unlink()
    (out / "graph-1.usearch").write_text("mine")
    assert len(Index(out).places)
    (documents / "tree.txt").write_text("the tree of the hill")
    changes, _ = build(documents, out, embedder)
    assert (changes.new, changes.unchanged) == (1, 3)
    assert set(Index(out).about["digests"]) == {"vectors", "places"}
    assert {path.name for path in out.iterdir()} == {
        ".lock", "index.json", "graph-1.usearch", "vectors-2.npy", "places-2.npy",
    }  # fmt: skip


def test_an_index_that_is_replaced_while_it_is_opened_is_read_anew(
    embedder, documents, tmp_path, monkeypatch
):
    out = tmp_path / "i"
    build(documents, out, embedder)
    read, changed = indexes.read_about, []

    def read_and_replace(folder):
        about = read(folder)
        if not changed:
            changed.append(True)
            build(documents, out, embedder)
        return about

    monkeypatch.setattr(indexes, "read_about", read_and_replace)
    assert Index(out).about["generation"] == 2
    (out / "places-2.npy").unlink()
    with pytest.raises(UserError, match=r"No such file .*places-2\.npy.* Build it again"):
        Index(out)


def test_a_build_without_text_leaves_no_folder(embedder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no text to index"):
        build(tmp_path / "empty", tmp_path / "i", embedder)
    assert not (tmp_path / "i").exists()


def test_the_graph_finds_what_exact_search_finds(embedder, documents, tmp_path, monkeypatch):
    pytest.importorskip("usearch")
    build(documents, tmp_path / "exact", embedder)
    for module in (builds, indexes):
        monkeypatch.setattr(module, "EXACT", 0)
    build(documents, tmp_path / "graph", embedder)
    assert list((tmp_path / "graph").glob("graph-*.usearch"))
    vector, _ = embedder.query("the old tree")
    found = Index(tmp_path / "graph").search(vector, 3)
    assert found == Index(tmp_path / "exact").search(vector, 3)
    (graph,) = (tmp_path / "graph").glob("graph-*.usearch")
    graph.write_bytes(graph.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"graph-1\.usearch must have the digest"):
        Index(tmp_path / "graph")
