"""Real clients of OpenAI's interface: the package `openai`, curl, and sentence-transformers."""

from __future__ import annotations

import json
import shutil
import subprocess

import httpx
import numpy as np
import openai
import pytest
from sentence_transformers import SentenceTransformer

from linformer_kit.models.load import load_tokenizer
from linformer_kit.serve.models import load_models

from .servers import local

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


TEMPLATE = (
    "{{ bos_token }}{% for each in messages %}"
    "{% if each.role == 'system' %}{{ raise_exception('no system message is read') }}{% endif %}"
    "{{ each.role }} {{ each.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "The old"},
    {"role": "assistant", "content": "dog"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "The "}, {"type": "text", "text": "cat"}],
    },
]
SEEDED = {"model": "chat", "seed": 3, "temperature": 0.8}


@pytest.fixture(scope="module")
def chatting(runs, models, tmp_path_factory):
    """A client of a causal model whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "chat"
    shutil.copytree(runs("clm").model_folder("best"), folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    served = load_models([str(folder)], say=lambda line: None)
    with (
        local({**served, "clm": models["clm"]}) as started,
        openai.OpenAI(
            base_url=f"{started.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.Client(trust_env=False),
        ) as made,
    ):
        yield made


def test_a_conversation_is_the_text_of_its_template_continued(chatting):
    made = chatting.chat.completions.create(messages=MESSAGES, max_tokens=12, **SEEDED)
    prompt = "user The old assistant dog user The cat assistant "
    wanted = chatting.completions.create(prompt=prompt, max_tokens=12, **SEEDED)
    assert made.choices[0].message.content == wanted.choices[0].text
    assert made.choices[0].message.role == "assistant"
    assert made.choices[0].finish_reason == wanted.choices[0].finish_reason
    assert made.usage == wanted.usage  # <s> is there once
    assert made.object == "chat.completion"


def test_streamed_messages_join_to_the_whole_one(chatting):
    asked = {"messages": MESSAGES, "max_completion_tokens": 12, **SEEDED}
    whole = chatting.chat.completions.create(**asked)
    chunks = list(
        chatting.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(each.content or "" for each in deltas) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_without_a_limit_a_message_has_the_length_of_the_settings(chatting, models):
    made = chatting.chat.completions.create(messages=MESSAGES, **SEEDED)
    most = models["clm"].predictor.config.evaluate.max_new_tokens
    assert 1 <= made.usage.completion_tokens <= most


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "clm"}, "clm continues texts and knows no conversations: its tokenizer has no"),
        ({"messages": [{"role": "system", "content": "a"}]}, "no system message is read"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "'system', 'user' or 'assistant'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages: Field required"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"logprobs": True}, "logprobs is not supported"),
        ({"n": 2}, "n is not supported"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "Give one of them"),
        ({"temperature": 1e-320}, "temperature must be 0"),
    ],
)
def test_a_conversation_that_cannot_be_answered(chatting, options, message):
    with pytest.raises(openai.BadRequestError) as caught:
        chatting.chat.completions.create(**{"messages": MESSAGES, **SEEDED, **options})
    assert message in caught.value.message


def test_models_of_other_tasks_say_what_they_are(client):
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        answer = client.post(path, json={"model": "classify", **body})
        assert answer.status_code == 400
        assert "classify has the task 'classify'" in answer.json()["error"]["message"]


def test_documents_are_ranked_by_the_cosine_of_their_vectors(client):
    texts = ["The small bird looks", "The old dog runs", "a cat"]
    body = {"model": "embed", "query": "The old dog", "documents": [*texts[:2], {"text": texts[2]}]}
    made = client.post("/v1/rerank", json={**body, "return_documents": True}).json()
    vectors = [
        np.array(each["embedding"])
        for each in client.post(
            "/v1/embeddings", json={"model": "embed", "input": [body["query"], *texts]}
        ).json()["data"]
    ]
    scores = [float(vectors[0] @ each) for each in vectors[1:]]
    order = np.argsort(scores)[::-1].tolist()
    assert [each["index"] for each in made["results"]] == order
    assert [each["relevance_score"] for each in made["results"]] == [scores[n] for n in order]
    assert [each["document"]["text"] for each in made["results"]] == [texts[n] for n in order]
    assert made["usage"]["total_tokens"] == made["tokens_read"] == made["tokens_total"]
    best = client.post("/v1/rerank", json={**body, "top_n": 1}).json()["results"]
    assert best == [{"index": order[0], "relevance_score": scores[order[0]]}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": ["a", " "]}, "documents[1]"),
        ({"documents": []}, "documents"),
        ({"documents": [{"text": "a", "title": "b"}]}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a"] * 2048}, "input"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": ["a"]}, "rank_fields"),
    ],
)
def test_what_cannot_be_ranked(client, body, param):
    body = {"model": "embed", "query": "a", "documents": ["b"], **body}
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code in (400, 413)
    assert answer.json()["error"]["param"] == param


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
