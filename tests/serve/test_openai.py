"""Real clients of OpenAI's interface: the package `openai`, curl, and sentence-transformers."""

from __future__ import annotations

import json
import subprocess

import httpx
import numpy as np
import openai
import pytest
from sentence_transformers import SentenceTransformer

TEXTS = ["The old dog runs", "a cat", "The small bird looks"]


@pytest.fixture(scope="module")
def theirs(server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx.Client(trust_env=False),
    ) as made:
        yield made


def test_embeddings_of_the_openai_package_are_those_of_sentence_transformers(theirs, runs):
    folder = runs("embed").model_folder("best")
    wanted = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    for encoding in ({}, {"encoding_format": "float"}):  # without, the package asks for base64
        answer = theirs.embeddings.create(model="embed", input=TEXTS, **encoding)
        made = np.array([each.embedding for each in answer.data])
        np.testing.assert_allclose(made, wanted, atol=3e-7)
        assert [each.index for each in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.tokens_read == answer.tokens_total


def test_token_ids_give_the_vector_of_their_text(theirs, models):
    ids = models["embed"].predictor.tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    by_ids = theirs.embeddings.create(model="embed", input=ids, encoding_format="float")
    by_text = theirs.embeddings.create(model="embed", input=TEXTS[0], encoding_format="float")
    assert by_ids.data[0].embedding == by_text.data[0].embedding
    frame = models["embed"].predictor.task.frame
    both = theirs.embeddings.create(model="embed", input=[ids, frame(ids)], encoding_format="float")
    assert [each.embedding for each in both.data] == [by_text.data[0].embedding] * 2
    assert both.tokens_read == 2 * by_text.tokens_read


def test_token_ids_with_a_part_of_their_special_tokens_are_refused(theirs, models):
    model = models["embed"].predictor
    (first,), (last,) = model.task.frame
    pad = model.tokenizer.pad_token_id
    for ids in ([first, 9], [9, last], [first, 9, last, pad], [pad, first, 9, last]):
        with pytest.raises(openai.BadRequestError, match="special tokens around a text") as caught:
            theirs.embeddings.create(model="embed", input=[[9], ids])
        assert caught.value.param == "input[1]"
    with pytest.raises(openai.BadRequestError, match="at least one"):
        theirs.embeddings.create(model="embed", input=[first, last])


def test_dimensions_that_were_not_trained_are_refused(theirs):
    with pytest.raises(openai.BadRequestError, match="must be one of 16"):
        theirs.embeddings.create(model="embed", input="a", dimensions=4)
    assert len(theirs.embeddings.create(model="embed", input="a", dimensions=16).data) == 1


def test_streamed_completions_join_to_the_whole_one(theirs):
    options = {
        "model": "clm", "prompt": "The ", "max_tokens": 20, "temperature": 0.01, "top_p": 0.9,
        "seed": 3,
    }  # fmt: skip
    whole = theirs.completions.create(**options)
    chunks = list(
        theirs.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].text
    assert len(whole.choices[0].text) > 5
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens <= 20


def test_a_seed_decides_what_is_drawn(theirs):
    def text(seed):
        made = theirs.completions.create(model="clm", prompt="T", max_tokens=30, seed=seed)
        return made.choices[0].text

    assert text(1) == text(1) != text(2)


def test_a_stop_string_ends_the_text_before_it(theirs):
    options = {"model": "clm", "prompt": "The ", "max_tokens": 40, "temperature": 2.0, "seed": 5}
    whole = theirs.completions.create(**options).choices[0].text
    stop = whole[10:12]
    ended = theirs.completions.create(**options, stop=[stop, "never"]).choices[0]
    assert ended.text == whole[: whole.index(stop)]
    assert ended.finish_reason == "stop"


@pytest.mark.parametrize(
    "option", [{"echo": True}, {"n": 2}, {"logprobs": 1}, {"suffix": "x"}, {"best_of": 2}]
)
def test_what_is_not_supported_is_refused(theirs, option):
    (name,) = option
    with pytest.raises(openai.BadRequestError, match=f"{name} is not supported"):
        theirs.completions.create(model="clm", prompt="a", **option)


def test_models_and_errors_have_the_shape_that_the_package_reads(theirs):
    assert "embed" in [model.id for model in theirs.models.list()]
    assert theirs.models.retrieve("clm").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        theirs.embeddings.create(model="none", input="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="task 'embed'"):
        theirs.embeddings.create(model="clm", input="a")


def test_curl(server):
    def curl(*arguments):
        made = subprocess.run(
            ["curl", "-sS", "--noproxy", "*", *arguments], capture_output=True, check=True
        )
        return made.stdout.decode()

    body = json.dumps({"model": "embed", "input": "a dog"})
    header = ("-H", "content-type: application/json")
    answer = json.loads(curl(f"{server.url}/v1/embeddings", *header, "-d", body))
    assert len(answer["data"][0]["embedding"]) == 16
    answer = json.loads(curl(f"{server.url}/v1/embeddings", "-d", body))
    assert answer["error"]["code"] == "unsupported_media_type"
    body = json.dumps({"model": "clm", "prompt": "a", "stream": True, "max_tokens": 3})
    lines = curl("-N", f"{server.url}/v1/completions", *header, "-d", body).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    answer = curl(f"{server.url}/predict", "-F", "model=classify", "-F", "file=@" + __file__)
    assert json.loads(answer)["task"] == "classify"
