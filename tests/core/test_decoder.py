"""LinformerDecoder: causal whatever the options, one function in every way of calling it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerDecoder, join_states
from linformer_kit.core import full_causal
from linformer_kit.core.projection_kinds import PROJECTIONS

from .processes import gradients_of_two, loss_of


def decoder_of(**options) -> LinformerDecoder:
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 2, "num_heads": 2, "k": 3, "window": 4, "ff_dim": 24}
    if options.get("cross_attention"):
        sizes |= {"context_k": 5, "context_max_length": 20}
    decoder = LinformerDecoder(**sizes | options)
    for name, parameter in decoder.named_parameters():
        if name.endswith("bias"):  # or their part would go untested
            nn.init.normal_(parameter, std=0.1)
    return decoder


def rows_of(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, 16, dtype=torch.float64, generator=generator)


OPTIONS = [
    {},
    {"attention": "full"},
    {"norm": "post"},
    {"activation": "swiglu", "num_kv_heads": 1, "head_dim": 6, "rotary": 0.0},
    {"bias": False, "window": 1, "k": 1},
    {"window": 7, "rotary": 1.0},
    {"cross_attention": True},
    {"cross_attention": True, "attention": "full", "context_projection": "full"},
    {"cross_attention": True, "context_projection": "linear", "context_sharing": "layerwise"},
]


def context_for(options: dict, batch: int) -> dict[str, torch.Tensor]:
    if not options.get("cross_attention"):
        return {}
    mask = torch.arange(11) < torch.arange(11, 11 - batch, -1)[:, None]
    return {"context": rows_of(batch, 11, seed=2), "context_mask": mask}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_nothing_leaks_from_the_future(options, training):
    decoder = decoder_of(**options).double().train(training)
    x, context = rows_of(1, 33).requires_grad_(), context_for(options, 1)
    y = decoder(x, **context)
    for t in (0, 3, 4, 8, 20, 32):
        (gradient,) = torch.autograd.grad(y[0, t].square().sum(), x, retain_graph=True)
        assert gradient[0, t + 1 :].eq(0).all()
        assert gradient[0, 0].ne(0).any()
    poisoned = x.detach().clone()
    poisoned[:, 20:] = float("nan")
    assert torch.equal(decoder(poisoned, **context)[:, :20], y[:, :20])
    state = decoder.init_state(1, **context)
    prefilled, state = decoder(poisoned, state=state)
    assert_close(prefilled[:, :20], y[:, :20])
    assert prefilled[:, 20:].isnan().all()
    assert decoder.step(x[:, :1], state)[0].isnan().all()


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_at_once_equals_prompt_and_steps_equals_steps(options, dtype, near):
    decoder = decoder_of(**options).to(dtype).eval()
    for length, prompt in ((24, 8), (29, 10)):
        x = rows_of(2, length).to(dtype)
        context = {
            k: v if v.dtype == torch.bool else v.to(dtype)
            for k, v in context_for(options, 2).items()
        }
        whole = decoder(x, **context)
        for first in (0, prompt):
            state = decoder.init_state(2, **context)
            parts = []
            if first:
                y, state = decoder(x[:, :first], state=state)
                parts.append(y)
            for t in range(first, length):
                y, state = decoder.step(x[:, t : t + 1], state)
                parts.append(y)
            assert_close(torch.cat(parts, dim=1), whole, rtol=near, atol=near)


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padding_anywhere_leaves_each_sample_as_it_is_alone(options, side):
    decoder = decoder_of(**options).double()
    lengths = [19, 6, 1]
    place = torch.arange(19)
    mask = place < torch.tensor(lengths)[:, None]
    if side == "left":
        mask = mask.flip(1)
    if side == "holes":
        mask = mask[:, torch.randperm(19, generator=torch.Generator().manual_seed(3))]
    clean = rows_of(3, 19)
    context = context_for(options, 3)
    results = []
    for garbage in (0.0, float("nan")):
        x = torch.where(mask[..., None], clean, garbage).requires_grad_()
        y = decoder(x, mask=mask, **context)
        y.square().sum().backward()
        gradients = [p.grad.clone() for p in decoder.parameters() if p.grad is not None]
        results.append([y, x.grad, *gradients])
        decoder.zero_grad()
    for one, other in zip(*results, strict=True):
        assert torch.isfinite(other).all()
        assert_close(one, other, rtol=0, atol=0)
    y = results[0][0]
    assert y[~mask].eq(0).all()
    state = decoder.init_state(3, **context)
    prefilled, state = decoder(clean, mask=mask, state=state)
    assert_close(prefilled, y)
    after = rows_of(3, 9, seed=5)
    steps = []
    for t in range(9):
        row, state = decoder.step(after[:, t : t + 1], state)
        steps.append(row)
    for b, length in enumerate(lengths):
        mine = {name: value[b : b + 1] for name, value in context.items()}
        alone = torch.cat((clean[b][mask[b]], after[b]))[None]
        expected = decoder(alone, **mine)[0]
        assert_close(y[b][mask[b]], expected[:length])
        assert_close(torch.cat([row[b] for row in steps]), expected[length:])


@pytest.mark.parametrize("options", [{}, {"attention": "full"}, {"cross_attention": True}], ids=str)
def test_a_state_can_be_reordered_joined_saved_and_continued_twice(options, tmp_path):
    from safetensors.torch import load_file, save_file

    decoder = decoder_of(**options).double().eval()
    x, context = rows_of(3, 14), context_for(options, 3)
    state = decoder.init_state(3, **context)
    _, state = decoder(x[:, :9], state=state)
    expected, _ = decoder.step(x[:, 9:10], state)
    again, _ = decoder.step(x[:, 9:10], state)
    assert torch.equal(again, expected)
    index = torch.tensor([2, 0, 0])
    reordered, _ = decoder.step(x[index, 9:10], state.reorder(index))
    assert_close(reordered, expected[index])
    save_file(state.tensors(), tmp_path / "state.safetensors")
    fresh = decoder.init_state(3, **context).with_tensors(load_file(tmp_path / "state.safetensors"))
    assert_close(decoder.step(x[:, 9:10], fresh)[0], expected)
    singles = []
    for b, length in enumerate((3, 9, 5)):
        mine = {name: value[b : b + 1] for name, value in context.items()}
        single = decoder.init_state(1, **mine)
        singles.append(decoder(x[b : b + 1, :length], state=single)[1])
    joined = join_states(singles)
    assert joined.position.tolist() == [3, 9, 5]
    together, _ = decoder.step(x[:, 9:10], joined)
    for b in range(3):
        assert_close(together[b], decoder.step(x[b : b + 1, 9:10], singles[b])[0][0])
    with pytest.raises(ValueError, match=r"not those of this decoder's state"):
        state.with_tensors({"position": state.position})


@pytest.mark.parametrize("batch", [1, 3])
def test_a_new_state_can_be_saved_and_reordered(batch, tmp_path):
    from safetensors.torch import load_file, save_file

    decoder = decoder_of().double().eval()
    x = rows_of(batch, 30)
    state = decoder.init_state(batch)
    save_file(state.tensors(), tmp_path / "state.safetensors")
    fresh = decoder.init_state(batch).with_tensors(load_file(tmp_path / "state.safetensors"))
    index = torch.tensor([batch - 1, 0, 0, 0])
    expected = decoder(x)[index]
    for each in (state.reorder(index), fresh.reorder(index)):
        assert_close(decoder(x[index], state=each)[0], expected)


@pytest.mark.parametrize("projection", ["mean", "full", "dynamic", "linear"])
def test_joined_states_keep_the_padding_and_the_length_of_each_context(projection):
    decoder = decoder_of(cross_attention=True, context_projection=projection).double().eval()
    contexts = [rows_of(1, 20, seed=7), rows_of(1, 20, seed=8), rows_of(1, 9, seed=9)]
    masks = [None, torch.arange(20)[None] < 6, None]
    singles = [
        decoder.init_state(1, context=context, context_mask=mask)
        for context, mask in zip(contexts, masks, strict=True)
    ]
    x = rows_of(3, 1)
    for order in ([0, 1, 2], [2, 1, 0]):
        together, _ = decoder.step(x[order], join_states([singles[b] for b in order]))
        for row, b in enumerate(order):
            assert_close(together[row], decoder.step(x[b : b + 1], singles[b])[0][0])


def test_large_numbers_in_half_precision_are_not_taken_for_broken_ones():
    decoder = decoder_of(dim=512, num_heads=8).half()
    x = (torch.randn(1, 3, 512) + 130).half()
    assert torch.isfinite(decoder(x)).all()


def test_a_long_prompt_goes_through_full_attention_in_parts(monkeypatch):
    decoder = decoder_of(attention="full").double().eval()
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    mask = torch.arange(11) < torch.tensor([[11], [7]])
    with torch.no_grad():
        whole, _ = decoder(x, mask=mask, state=decoder.init_state(batch_size=2))
        monkeypatch.setattr(full_causal, "QUERIES", 4)
        parts, _ = decoder(x, mask=mask, state=decoder.init_state(batch_size=2))
    assert_close(parts, whole)


def test_the_cache_of_full_attention_has_a_row_for_each_token_not_for_padding():
    decoder = decoder_of(attention="full").double()
    state = decoder.init_state(2)
    mask = torch.arange(50)[None] < torch.tensor([[3], [2]])
    for _ in range(3):
        _, state = decoder(rows_of(2, 50), mask=mask, state=state)
    assert state.position.tolist() == [9, 6]
    assert state.layers[0].key.shape[1] == 9


def test_state_bytes_do_not_grow():
    decoder = decoder_of()
    state = decoder.init_state(1)
    sizes = {state.nbytes}
    with torch.no_grad():
        for count in (1000, 99_000):
            _, state = decoder(torch.randn(1, count, 16), state=state)
            sizes.add(state.nbytes)
    assert state.position.item() == 100_000
    assert len(sizes) == 1


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("sharing", ["none", "kv", "layerwise"])
def test_every_projection_of_the_context(projection, sharing):
    decoder = decoder_of(
        cross_attention=True, context_projection=projection, context_sharing=sharing
    ).double()
    context = context_for({"cross_attention": True}, 2)
    x = rows_of(2, 9)
    whole = decoder(x, **context)
    state = decoder.init_state(2, **context)
    steps = []
    for t in range(9):
        y, state = decoder.step(x[:, t : t + 1], state)
        steps.append(y)
    assert_close(torch.cat(steps, dim=1), whole)
    poisoned = context["context"].masked_fill(~context["context_mask"][..., None], float("nan"))
    assert torch.equal(decoder(x, context=poisoned, context_mask=context["context_mask"]), whole)


def test_checkpointing_repeats_dropout_and_gives_the_same_gradients():
    decoder = decoder_of(dropout=0.2, activation_dropout=0.1, cross_attention=True).double().train()
    x, context = rows_of(2, 21), context_for({"cross_attention": True}, 2)
    results = []
    for checkpointing in (False, True):
        decoder.gradient_checkpointing = checkpointing
        torch.manual_seed(5)
        y = decoder(x, **context)
        y.square().sum().backward()
        results.append([y, *(p.grad.clone() for p in decoder.parameters())])
        decoder.zero_grad()
    for plain, checkpointed in zip(*results, strict=True):
        assert_close(plain, checkpointed)
    assert not torch.equal(decoder(x, **context), decoder(x, **context))


@pytest.mark.parametrize("options", [{}, {"attention": "full"}, {"cross_attention": True}], ids=str)
def test_compiles_whole_in_parallel_and_by_steps(options):
    torch.compiler.reset()
    decoder = decoder_of(**options, depth=1).eval()
    context = {
        k: v if v.dtype == torch.bool else v.float() for k, v in context_for(options, 2).items()
    }
    x = rows_of(2, 18).float()
    parallel = torch.compile(decoder, fullgraph=True, backend="aot_eager")
    assert_close(parallel(x, **context), decoder(x, **context), rtol=1e-4, atol=1e-5)
    step = torch.compile(decoder.step, fullgraph=True, backend="aot_eager", dynamic=False)
    state = other = decoder.init_state(2, **context)
    for t in range(3 if options.get("attention") == "full" else 10):
        y, state = step(x[:, t : t + 1], state)
        z, other = decoder.step(x[:, t : t + 1], other)
        assert_close(y, z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"attention": "full"}, {"cross_attention": True}], ids=str)
def test_bfloat16(options):
    decoder = decoder_of(**options)
    context = context_for(options, 2)
    x = rows_of(2, 30)
    expected = decoder.double()(x, **context)
    low = decoder.bfloat16()
    small = {k: v if v.dtype == torch.bool else v.bfloat16() for k, v in context.items()}
    y = low(x.bfloat16(), **small)
    y.float().square().sum().backward()
    assert_close(y.double(), expected, rtol=0.2, atol=0.2)
    state = low.init_state(2, **small)
    prompt, state = low(x[:, :20].bfloat16(), state=state)
    assert_close(prompt, y[:, :20], rtol=0.1, atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = decoder.float()(
            x.float(), **{k: v if v.dtype == torch.bool else v.float() for k, v in context.items()}
        )
    assert_close(mixed.double(), expected, rtol=0.2, atol=0.2)


def _crossed_decoder() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    decoder = decoder_of(cross_attention=True, context_sharing="layerwise")
    return decoder, {"x": rows_of(4, 18).float(), "context": rows_of(4, 11, seed=2).float()}


def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path):
    grads = gradients_of_two(_crossed_decoder, tmp_path)
    decoder, batch = _crossed_decoder()
    loss_of(decoder, batch).backward()
    for name, parameter in decoder.named_parameters():
        assert_close(grads[name], parameter.grad, rtol=1e-4, atol=1e-6)


WRONG = [
    (lambda d: d(torch.randn(1, 4, 15)), r"\(batch, length, 16\): got \(1, 4, 15\)"),
    (lambda d: d.step(torch.randn(1, 2, 16), d.init_state(1)), r"one token: got 2.*state="),
    (lambda d: d.step(torch.randn(2, 1, 16), d.init_state(1)), r"for 1 samples.*got 2 samples"),
    (lambda d: d(torch.randn(1, 4, 16), context=torch.randn(1, 4, 16)), r"no cross-attention"),
    (
        lambda d: d(torch.randn(1, 2, 16), context=torch.randn(1, 2, 16), state=d.init_state(1)),
        r"the context is part of the state",
    ),
    (lambda d: decoder_of(cross_attention=True)(torch.randn(1, 4, 16)), r"needs a context"),
    (
        lambda d: d(torch.randn(1, 4, 16), context_mask=torch.ones(1, 4, dtype=torch.bool)),
        r"no cross-attention",
    ),
    (
        lambda d: decoder_of(cross_attention=True).init_state(3, context=torch.randn(2, 4, 16)),
        r"batch size of x: got 2 and 3",
    ),
    (
        lambda d: decoder_of(cross_attention=True).step(torch.randn(1, 1, 16), d.init_state(1)),
        r"another kind of decoder",
    ),
    (
        lambda d: decoder_of(attention="full").step(torch.randn(1, 1, 16), d.init_state(1)),
        r"another kind of decoder",
    ),
    (lambda d: decoder_of(k=0, cross_attention=True, context_k=None), r"context_k.*got 0"),
    (lambda d: decoder_of(attention="slot"), r"got 'slot'. Did you mean 'slots'\?"),
    (lambda d: join_states([]), r"at least one state"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_use_is_refused_with_what_was_received(call, message):
    with pytest.raises(ValueError, match=message):
        call(decoder_of())


def test_full_and_slots_agree_while_the_window_shows_everything():
    slots, full = decoder_of(window=16), decoder_of(window=16, attention="full")
    full.load_state_dict(
        {name: value for name, value in slots.state_dict().items() if "slot_proj" not in name}
    )
    x = rows_of(2, 32).float()
    assert_close(slots(x), full(x), rtol=1e-4, atol=1e-5)


def test_every_combination_of_norm_and_activation_trains_with_dropout():
    for norm, activation in itertools.product(("pre", "post"), ("gelu", "relu", "swiglu")):
        decoder = decoder_of(norm=norm, activation=activation, dropout=0.1).train()
        decoder(rows_of(2, 21).float()).sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in decoder.parameters())


def oracle_weights(attention, rows):
    """(H, N, K + 2W) of one text, or (H, N, N), by loops over tokens."""
    length = rows.shape[1]
    place = torch.arange(length)[None]
    query, key, plain_key, _ = attention.rotated_heads(rows, place)
    group = attention.num_heads // attention.num_kv_heads
    full = not hasattr(attention, "window")
    columns = length if full else attention.k + 2 * attention.window
    weights = torch.zeros(attention.num_heads, length, columns, dtype=rows.dtype)
    for t, head in itertools.product(range(length), range(attention.num_heads)):
        seen = {i: key[0, i, head // group] for i in range(t + 1)}
        if not full:
            window, chunk = attention.window, t // attention.window
            first = max(chunk - 1, 0) * window
            begin = attention.k + window - chunk * window  # the column of position 0
            slot_keys = {}
            if chunk >= 2:
                weight = attention._slot_weights(rows)[0, : (chunk - 1) * window]  # (n, K)
                share = weight / weight.sum(0)
                mean = share.T @ plain_key[0, : (chunk - 1) * window, head // group]
                mean[:, : attention.rotary_dim] = 0.0
                slot_keys = dict(enumerate(mean))
            seen = slot_keys | {begin + i: k for i, k in seen.items() if i >= first}
        scores = torch.stack([query[0, t, head] @ k for k in seen.values()])
        weights[head, t, list(seen)] = (scores * attention.head_dim**-0.5).softmax(0)
    return weights


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_trace_is_the_forward_pass_with_the_weights_that_led_to_it(options):
    decoder = decoder_of(**options).double().eval()
    x, context = rows_of(2, 19), context_for(options, 2)
    trace = decoder.trace(x, **context)
    assert_close(trace.output, decoder(x, **context))
    for layer, rows, weights in zip(
        decoder.layers, trace.hidden_states, trace.attentions, strict=False
    ):
        expected = oracle_weights(layer.attention, layer._source(rows[1:]))
        assert_close(weights[1], expected)
    assert len(trace.hidden_states) == 3
    assert len(trace.cross_attentions) == (2 if context else 0)
    for weights in trace.cross_attentions:
        assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    bare = decoder.trace(x, **context, attentions=False)
    assert_close(bare.hidden_states, trace.hidden_states)
    assert bare.attentions == bare.cross_attentions == ()


@pytest.mark.parametrize("attention", ["slots", "full"])
def test_the_trace_of_a_padded_text_is_that_of_the_text_alone(attention):
    decoder = decoder_of(attention=attention).double().eval()
    mask = torch.ones(2, 15, dtype=torch.bool)
    mask[1, :4] = mask[1, 9] = False
    x = rows_of(2, 15)
    trace, alone = decoder.trace(x, mask=mask), decoder.trace(x[1:, mask[1]])
    for padded, bare in zip(trace.hidden_states, alone.hidden_states, strict=True):
        assert_close(padded[1, mask[1]], bare[0])
        assert padded[1, ~mask[1]].count_nonzero() == 0
    for padded, bare in zip(trace.attentions, alone.attentions, strict=True):
        rows = padded[1][:, mask[1]]
        assert_close(rows[:, :, mask[1]] if attention == "full" else rows, bare[0])
        assert padded[1][:, ~mask[1]].count_nonzero() == 0


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("length", [3, 8, 19])
@pytest.mark.parametrize("options", [*OPTIONS, {"gradient_checkpointing": True}], ids=str)
def test_the_weights_of_a_trace_have_a_gradient(options, length, masked, training):
    decoder = decoder_of(dropout=0.2, **options).double().train(training)
    x, others = rows_of(2, length).requires_grad_(), context_for(options, 2)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, 0] = mask[1, 2:4] = False
    if masked:
        others["mask"] = mask

    def seeded(run):
        torch.manual_seed(3)
        return run(x, **others)

    trace, output = seeded(decoder.trace), seeded(decoder)
    assert_close(trace.output, output)  # the same dropout too
    every = (*trace.attentions, *trace.cross_attentions)
    for kept in (*every, *trace.hidden_states):
        kept.retain_grad()
    leaves = [x, *decoder.parameters()]
    by_forward = torch.autograd.grad(output.sin().sum(), leaves, allow_unused=True)
    trace.output.sin().sum().backward()
    for mine, theirs in zip([leaf.grad for leaf in leaves], by_forward, strict=True):
        if theirs is not None:
            assert_close(mine, theirs)
    for kept in (*every, *trace.hidden_states):
        assert kept.grad.isfinite().all()
        assert kept.grad.any()
    for weights in every if masked else ():
        assert not weights.grad[1][:, ~mask[1]].any()


def test_a_trace_continues_a_state_without_weights():
    decoder = decoder_of().double().eval()
    x = rows_of(2, 15)
    whole = decoder.trace(x)
    _, state = decoder(x[:, :6], state=decoder.init_state(2))
    trace = decoder.trace(x[:, 6:], state=state, attentions=False)
    assert_close(trace.hidden_states, tuple(rows[:, 6:] for rows in whole.hidden_states))
    assert trace.state.position.tolist() == [15, 15]
    with pytest.raises(ValueError, match="attentions=False"):
        decoder.trace(x, state=state)


@pytest.mark.parametrize("autocast", [False, True])
def test_training_in_float16_on_two_windows_is_finite(autocast):
    """The slots are not used yet, and the sum of their weights does not fit float16."""
    torch.manual_seed(0)
    decoder = LinformerDecoder(dim=32, depth=1, num_heads=2, k=64, window=128).train()
    x = torch.randn(4, 256, 32)
    if not autocast:
        decoder, x = decoder.half(), x.half()
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        assert decoder(x).isfinite().all()


def test_a_batch_of_no_samples():
    decoder = LinformerDecoder(dim=8, depth=1, num_heads=2, k=4, window=4)
    x = torch.randn(0, 30, 8)
    assert decoder(x).shape == x.shape
    with torch.no_grad():
        assert decoder.eval()(x).shape == x.shape


def test_the_default_dtype_does_not_change_a_state():
    torch.manual_seed(0)
    decoder = LinformerDecoder(dim=8, depth=1, num_heads=2, k=4, window=4).eval()
    x = torch.randn(1, 30, 8)
    before = torch.get_default_dtype()
    with torch.no_grad():
        expected = decoder(x)
        torch.set_default_dtype(torch.float16)
        try:
            found, _ = decoder(x, state=decoder.init_state(batch_size=1))
        finally:
            torch.set_default_dtype(before)
    torch.testing.assert_close(found, expected)
