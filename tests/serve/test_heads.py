"""POST /heads: the record of `linformer heads` on the beginning of a text, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linformer_kit.evidence.analysis.encoders import load_encoder
from linformer_kit.evidence.analysis.heads import HeadsOptions, analyse_head
from linformer_kit.models import LinformerConfig, LinformerForEmbedding
from linformer_kit.models.load import load_tokenizer
from linformer_kit.serve.models import ServedModel

from .servers import local

SENTENCE = "The small dog runs over the river two times. "


@pytest.fixture(scope="module")
def window_folder(runs, tmp_path_factory):
    """An untrained encoder with a window, full attention in its second layer."""
    folder = tmp_path_factory.mktemp("window")
    tokenizer = load_tokenizer(runs("embed").model_folder("best"))
    config = LinformerConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=256, k=8, window=4, global_tokens=1,
        full_layers=[1], pooling="mean", type_vocab_size=0,
    )  # fmt: skip
    torch.manual_seed(0)
    LinformerForEmbedding(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def heads_server(models, window_folder):
    with local({**models, "window": ServedModel("window", window_folder)}) as started:
        yield started


@pytest.fixture
def ask(heads_server):
    with heads_server.client() as client:
        yield lambda **body: client.post("/heads", json=body)


def refused(answer):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("task", ["mlm", "classify", "tag", "embed"])
def test_the_record_is_that_of_linformer_heads(task, ask, runs, tmp_path):
    text = SENTENCE * 3  # more than the 32 tokens that the model reads
    (tmp_path / "text.txt").write_text(text)
    got = ask(model=task, input=text, head=2).json()
    assert got["tokens_read"] == 32
    assert got["tokens_total"] == len(text) + 2
    encoder = load_encoder(str(runs(task).path))
    wanted = analyse_head(
        encoder, [str(tmp_path / "text.txt")], HeadsOptions(head=2, length=32), machine={}
    )
    for name in ("layer", "head", "projection", "sharing"):
        assert got[name] == wanted[name]
    for image, other in zip(
        [got["attention"], *got["matrices"]],
        [wanted["attention"], *wanted["matrices"]],
        strict=True,
    ):
        np.testing.assert_allclose(image["values"], other["values"], atol=2e-5)
    assert [row["tokens"] for row in got["rows"]] == [row["tokens"] for row in wanted["rows"]]
    assert got["seconds"] >= got["seconds_computing"] > 0


def test_rows_and_window_are_shares_of_one_attention(ask, heads_server, window_folder):
    got = ask(model="window", input=SENTENCE * 2, layer=3, head=1, length=40).json()
    assert (got["tokens_read"], got["tokens_total"]) == (40, 92)
    assert got["tokens"][:4] == ["<s>", "T", "h", "e"]
    rows, exact = (np.array(got[name]["values"]) for name in ("attention", "exact"))
    assert rows.shape == (40, 8)
    assert exact.shape == (40, 40)
    np.testing.assert_allclose(rows.sum(1) + exact.sum(1), 1, atol=1e-3)
    assert sum(got["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert got["shares"]["rows"] == pytest.approx(rows.sum(1).mean(), abs=1e-3)
    far = [exact[i, j] for i in range(1, 40) for j in range(1, 40) if abs(i - j) > 12]
    assert max(far) == 0  # outside the window and not global
    assert exact[:, 0].min() > 0
    with heads_server.client() as client:
        about = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    assert about["window"]["head_view"] == {"layers": [1, 3], "heads": 2, "max_length": 512}
    assert about["clm"]["head_view"] is about["translate"]["head_view"] is None


def test_a_short_text_is_shown_whole(ask):
    got = ask(model="window", input="The dog").json()
    assert got["tokens_read"] == got["tokens_total"] == len(got["tokens"]) == 9
    assert len(got["matrices"][0]["values"][0]) == 9


def test_what_cannot_be_shown_is_refused(ask):
    assert refused(ask(model="window", input="a", layer=2)) == (
        "layer", "layer must be one of 1, 3: got 2."
    )  # fmt: skip
    assert refused(ask(model="window", input="a", head=3)) == (
        "head", "head must be at most 2: got 3."
    )  # fmt: skip
    assert refused(ask(model="window", input="a", length=513))[0] == "length"
    assert refused(ask(model="window", input=" "))[0] == "input"
    assert refused(ask(model="window", input=["a"]))[0] == "input"
    assert refused(ask(model="window", input="a", top=3))[0] == "top"
    for model in ("clm", "translate"):
        param, message = refused(ask(model=model, input="a"))
        assert param == "model"
        assert "writes text" in message


def test_limits_and_content_type(models):
    settings = {"max_tokens": 50, "max_body": 2000}
    with local({"embed": models["embed"]}, **settings) as server, server.client() as client:
        answer = client.post("/heads", json={"input": "a" * 60})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_tokens")
        answer = client.post("/heads", json={"input": "a" * 3000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        answer = client.post("/heads", files={"file": b"a"})
        assert answer.status_code == 415
        assert client.get("/heads").status_code == 405
        assert client.post("/heads", json={"input": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "why"),
    [({"projection": "full"}, "the vanilla Transformer"), ({"projection": "max"}, "no matrix")],
)
def test_an_encoder_without_e_says_why(runs, tmp_path, options, why):
    tokenizer = load_tokenizer(runs("embed").model_folder("best"))
    config = LinformerConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, k=8, type_vocab_size=0, **options,
    )  # fmt: skip
    LinformerForEmbedding(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = ServedModel("plain", tmp_path)
    assert model.head_view.describe() is None
    assert why in model.head_view.why_not
