"""generate(): the same text as without a cache, however it is asked for."""

from __future__ import annotations

import copy
import itertools
import threading

import pytest
import torch
from torch.testing import assert_close
from transformers import TextIteratorStreamer

from linformer_kit.models import LinformerCache, LinformerConfig, LinformerForCausalLM

from .cases import CASES, SMALL, tokens
from .vocabulary import tokenizer_of

KINDS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"projection": "full"},
        {"position_embedding_type": "learned", "max_position_embeddings": 64},
        {"num_slots": 0},
        {"norm": "post", "num_key_value_heads": 1},
    ],
    ids=str,
)


def causal(**options):
    model = CASES["LinformerForCausalLM"].build(initializer_range=0.5, **options)
    model.generation_config.eos_token_id = None  # so that all go on to the end
    return model


def seq2seq(**options):
    model = CASES["LinformerForConditionalGeneration"].build(initializer_range=0.5, **options)
    model.generation_config.eos_token_id = None
    return model


def by_whole_forwards(model, ids, count, **inputs):
    """Greedy, reading the whole text again for every token."""
    for _ in range(count):
        name = "decoder_input_ids" if "input_ids" in inputs else "input_ids"
        logits = model(**inputs | {name: ids}).logits[:, -1]
        ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), dim=1)
    return ids


@KINDS
def test_greedy_generation_is_a_loop_of_whole_forwards(options):
    model = causal(**options)
    ids = tokens(2, 5)
    expected = by_whole_forwards(model, ids, 30)
    assert torch.equal(model.generate(ids, max_new_tokens=30, do_sample=False), expected)
    slow = model.generate(ids, max_new_tokens=30, do_sample=False, use_cache=False)
    assert torch.equal(slow, expected)
    assert len(set(expected[0].tolist())) > 3  # not one token again and again


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projection": "full"},
        {"share_embeddings": False},
        {"decoder_hidden_size": 24, "share_embeddings": False, "decoder_num_hidden_layers": 1},
        {"context_projection": "linear", "decoder_position_embedding_type": "sinusoidal"},
    ],
    ids=str,
)
def test_sequence_to_sequence_generation_is_a_loop_of_whole_forwards(options):
    model = seq2seq(**options)
    inputs = CASES["LinformerForConditionalGeneration"].inputs()
    expected = by_whole_forwards(model, torch.ones(2, 1, dtype=torch.long), 20, **inputs)
    assert torch.equal(model.generate(**inputs, max_new_tokens=20, do_sample=False), expected)
    slow = model.generate(**inputs, max_new_tokens=20, do_sample=False, use_cache=False)
    assert torch.equal(slow, expected)


@KINDS
@pytest.mark.parametrize("beams", [1, 3])
def test_left_padded_prompts_are_the_prompts_alone(options, beams):
    model = causal(**options)
    prompts = [tokens(1, 3, seed=1), tokens(1, 11, seed=2), tokens(1, 7, seed=3)]
    padded = torch.zeros(3, 11, dtype=torch.long)
    for row, prompt in zip(padded, prompts, strict=True):
        row[11 - prompt.shape[1] :] = prompt[0]
    how = {"max_new_tokens": 15, "num_beams": beams, "do_sample": False}
    together = model.generate(padded, attention_mask=(padded != 0).long(), **how)
    for row, prompt in zip(together, prompts, strict=True):
        assert torch.equal(row[11:], model.generate(prompt, **how)[0, prompt.shape[1] :])


def best_by_brute_force(log_probability, start, count, beams, penalty, end):
    """Beam search over tuples: (best text, its score)."""
    running = [((), 0.0)]
    finished: list[tuple[tuple[int, ...], float]] = []
    for step in range(1, count + 1):
        every = [
            ((*text, token), score + p)
            for text, score in running
            for token, p in enumerate(log_probability((*start, *text)))
        ]
        every.sort(key=lambda pair: -pair[1])
        running = []
        for place, (text, score) in enumerate(every[: 2 * beams]):
            if text[-1] == end or step == count:
                if place < beams:
                    finished.append((text, score / step**penalty))
            elif len(running) < beams:
                running.append((text, score))
        finished = sorted(finished, key=lambda pair: -pair[1])[:beams]
    return finished[0]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_beam_search_is_the_brute_force_one(kind, penalty):
    small = {"vocab_size": 5, "window": 2, "eos_token_id": 2}
    model = {"causal": causal, "seq2seq": seq2seq}[kind](**small)
    model.generation_config.eos_token_id = 2
    inputs, name, start = {}, "input_ids", (3, 4)
    if kind == "seq2seq":
        inputs = {"input_ids": torch.tensor([[3, 4, 3, 1, 0]])}
        name, start = "decoder_input_ids", (1,)

    def log_probability(text):
        logits = model(**inputs | {name: torch.tensor([text])}).logits[0, -1]
        return logits.log_softmax(-1).tolist()

    text, score = best_by_brute_force(log_probability, start, 7, 3, penalty, end=2)
    output = model.generate(
        **inputs or {"input_ids": torch.tensor([start])},
        max_new_tokens=7,
        num_beams=3,
        do_sample=False,
        length_penalty=penalty,
        early_stopping="never",
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert tuple(output.sequences[0, len(start) :].tolist()) == text
    assert output.sequences_scores.item() == pytest.approx(score, abs=1e-4)


def test_sampling_depends_on_the_seed_alone():
    model = causal()
    ids = tokens(2, 5)

    def sampled(seed, **how):
        torch.manual_seed(seed)
        return model.generate(ids, max_new_tokens=20, do_sample=True, top_k=0, **how)

    assert torch.equal(sampled(1), sampled(1, use_cache=False))
    assert not torch.equal(sampled(1), sampled(2))
    assert sampled(1, num_return_sequences=3).shape == (6, 25)


def test_text_streams_out_as_it_is_made():
    tokenizer = tokenizer_of()
    model = causal(vocab_size=len(tokenizer))
    inputs = tokenizer("the cat", return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    how = {"max_new_tokens": 12, "do_sample": False}
    thread = threading.Thread(target=model.generate, kwargs={**inputs, **how, "streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    whole = tokenizer.decode(model.generate(**inputs, **how)[0, inputs.input_ids.shape[1] :])
    assert "".join(pieces) == whole
    assert sum(map(bool, pieces)) > 1


@pytest.mark.parametrize("by", ["assistant", "lookup"])
def test_assisted_generation_is_refused_because_a_state_cannot_go_back(by):
    model = causal()
    how = {"assistant_model": causal()} if by == "assistant" else {"prompt_lookup_num_tokens": 3}
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful"):
        model.generate(tokens(1, 7), max_new_tokens=12, do_sample=False, **how)


def test_a_returned_cache_is_continued():
    model = causal()
    ids = tokens(2, 6)
    how = {"do_sample": False, "return_dict_in_generate": True}
    whole = model.generate(ids, max_new_tokens=20, **how).sequences
    first = model.generate(ids, max_new_tokens=8, **how)
    assert isinstance(first.past_key_values, LinformerCache)
    kept = first.past_key_values.copy()
    for cache in (first.past_key_values, kept):
        second = model.generate(first.sequences, past_key_values=cache, max_new_tokens=12, **how)
        assert torch.equal(second.sequences, whole)


def test_a_prompt_may_be_read_in_parts():
    model = causal()
    ids = tokens(2, 17)
    how = {"max_new_tokens": 9, "do_sample": False}
    assert torch.equal(model.generate(ids, **how, prefill_chunk_size=5), model.generate(ids, **how))


def test_a_prompt_may_be_embedded():
    model = causal()
    ids = tokens(2, 7)
    vectors = model.get_input_embeddings()(ids)
    how = {"max_new_tokens": 9, "do_sample": False}
    made = model.generate(inputs_embeds=vectors, **how)
    assert torch.equal(made, model.generate(ids, **how)[:, 7:])


def test_the_cache_does_not_grow():
    model = causal()
    how = {"do_sample": False, "return_dict_in_generate": True}
    sizes = [
        model.generate(tokens(1, 4), max_new_tokens=count, **how).past_key_values.nbytes
        for count in (10, 40, 160)
    ]
    assert len(set(sizes)) == 1
    full = causal(projection="full")
    grown = [
        full.generate(tokens(1, 4), max_new_tokens=count, **how).past_key_values.nbytes
        for count in (10, 40)
    ]
    assert grown[1] > 3 * grown[0]


def test_the_encoder_is_read_and_shortened_once():
    model = seq2seq()
    seen = {"encoder": 0, "shortened": 0}
    model.encoder.register_forward_hook(lambda *_: seen.update(encoder=seen["encoder"] + 1))
    for layer in model.decoder.decoder.layers:
        layer.cross_attention.projection.register_forward_hook(
            lambda *_: seen.update(shortened=seen["shortened"] + 1)
        )
    model.generate(tokens(2, 20), max_new_tokens=15, num_beams=2)
    assert seen == {"encoder": 1, "shortened": 2}  # once for each of two layers


def test_hidden_states_come_with_a_cache_and_attentions_without():
    model = causal()
    how = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    output = model.generate(tokens(1, 6), **how, output_hidden_states=True)
    assert [tuple(t.shape) for t in output.hidden_states[0]] == [(1, 6, 16)] * 3
    assert [tuple(t.shape) for t in output.hidden_states[4]] == [(1, 1, 16)] * 3
    output = model.generate(tokens(1, 6), **how, output_attentions=True, use_cache=False)
    assert output.attentions[4][1].shape == (1, 2, 10, 11)
    with pytest.raises(ValueError, match="continues a cache: got output_attentions=True"):
        model.generate(tokens(1, 6), **how, output_attentions=True)


def test_caches_are_chosen_reordered_and_repeated_with_their_samples():
    model = causal()
    ids = tokens(3, 9)
    cache = model(ids, use_cache=True).past_key_values
    assert cache.get_seq_length() == 9
    assert len(cache) == 2
    following = tokens(3, 2, seed=4)
    expected = model(torch.cat((ids, following), 1)).logits[:, 9:]
    order = torch.tensor([2, 0])
    chosen = cache.copy()
    chosen.batch_select_indices(order)
    assert_close(model(following[order], past_key_values=chosen).logits, expected[order])
    many = cache.copy()
    many.batch_repeat_interleave(2)
    doubled = following.repeat_interleave(2, dim=0)
    assert_close(model(doubled, past_key_values=many).logits, expected.repeat_interleave(2, dim=0))
    with pytest.raises(ValueError, match=r"cannot be taken back: got crop\(1\)"):
        cache.crop(1)
    cache.reset()
    assert_close(model(ids, past_key_values=cache).logits, model(ids).logits)


def test_other_caches_are_refused():
    model = causal()
    with pytest.raises(ValueError, match="got cache_implementation='static'"):
        model.generate(tokens(1, 4), max_new_tokens=3, cache_implementation="static")
    from transformers import DynamicCache

    with pytest.raises(TypeError, match=r"must be a LinformerCache.*got DynamicCache"):
        model(tokens(1, 4), past_key_values=DynamicCache())


def test_generation_in_bfloat16_goes_on_for_long():
    model = causal().bfloat16()
    out = model.generate(tokens(1, 4), max_new_tokens=300, do_sample=False)
    assert out.shape == (1, 304)


def test_a_model_may_be_copied():
    config = LinformerConfig(**SMALL)
    model = LinformerForCausalLM(config)
    again = copy.deepcopy(model).eval()
    ids = tokens(1, 5)
    assert_close(again(ids).logits, model.eval()(ids).logits)
    assert not set(map(id, again.parameters())) & set(map(id, model.parameters()))
    assert list(itertools.islice(again.named_parameters(), 1))


def test_features_are_read_and_text_is_written():
    model = seq2seq(feature_size=5)
    assert not hasattr(model.encoder.embeddings, "embed_tokens")
    features = torch.randn(2, 20, 5)
    how = {"max_new_tokens": 8, "do_sample": False}
    made = model.generate(inputs_embeds=features, **how)
    assert made.shape == (2, 9)
    assert torch.equal(made, model.generate(inputs_embeds=features, **how, use_cache=False))


def test_a_cache_position_that_agrees_is_taken_and_any_other_refused():
    model = causal()
    ids = tokens(2, 9)
    expected = model(ids).logits
    for use_cache in (False, True):
        given = {"use_cache": use_cache, "cache_position": torch.arange(9)}
        assert_close(model(ids, **given).logits, expected)
    cache = model(ids[:, :6], use_cache=True).past_key_values
    for place in range(6, 9):
        position = torch.tensor([place])
        output = model(ids[:, place : place + 1], past_key_values=cache, cache_position=position)
        assert_close(output.logits[:, 0], expected[:, place])
    message = r"must be 9 ... 9, the columns after the 9 in the cache: got \[3\]. Leave it out"
    with pytest.raises(ValueError, match=message):
        model(ids[:, :1], past_key_values=cache, cache_position=torch.tensor([3]))
    with pytest.raises(ValueError, match=r"must be 0 ... 8.*got a tensor of shape \(2, 9\)"):
        model(ids, cache_position=torch.arange(18).view(2, 9))


@pytest.mark.parametrize("build", [causal, seq2seq])
def test_generate_takes_a_cache_position_for_its_first_step(build):
    model = build()
    ids = tokens(2, 5)
    first = torch.arange(5 if build is causal else 1)
    how = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, **how)
    assert torch.equal(model.generate(ids, **how, cache_position=first), expected)
    assert torch.equal(model.generate(ids, **how, cache_position=first, use_cache=False), expected)
    with pytest.raises(ValueError, match=r"cache_position must be 0 \.\.\."):
        model.generate(ids, **how, cache_position=first + 1)
