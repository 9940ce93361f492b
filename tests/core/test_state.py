"""The state of a decoder as a plain value: each operation against the same on every tensor."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit import LinformerDecoder, join_states

KINDS = [
    {},
    {"attention": "full"},
    {"cross_attention": True, "context_k": 5, "context_max_length": 20},
    {"cross_attention": True, "context_projection": "full", "attention": "full"},
]


def decoder_of(options) -> LinformerDecoder:
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 2, "num_heads": 2, "k": 3, "window": 4, "ff_dim": 24}
    return LinformerDecoder(**sizes | options).eval()


@torch.no_grad()
def state_of(options, batch=3, length=9, context=11):
    decoder = decoder_of(options)
    memory = {"context": torch.randn(batch, context, 16)} if "cross_attention" in options else {}
    state = decoder.init_state(batch, **memory)
    return decoder(torch.randn(batch, length, 16), state=state)[1]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_reordering_takes_the_same_samples_of_every_tensor(options):
    state, index = state_of(options), torch.tensor([2, 0, 0, 1])
    taken = state.reorder(index).tensors()
    for name, tensor in state.tensors().items():
        assert torch.equal(taken[name], torch.stack([tensor[i] for i in index.tolist()])), name


def test_reordering_copies_nothing_that_all_samples_share():
    state = state_of({})
    shared = state.map(lambda tensor: tensor[:1].expand(3, *tensor.shape[1:]))
    taken = shared.reorder(torch.tensor([1, 1, 2, 0, 0]))
    assert taken.position.shape == (5,)
    assert taken.position.data_ptr() == shared.position.data_ptr()


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_state_is_the_same_after_its_tensors_were_taken_out_and_put_back(options):
    state = state_of(options)
    blank = state.map(torch.zeros_like)
    back = blank.with_tensors(state.tensors())
    assert back.tensors().keys() == state.tensors().keys()
    for name, tensor in state.tensors().items():
        assert torch.equal(back.tensors()[name], tensor), name
        assert tensor.is_contiguous(), name
    assert all(not tensor.any() for tensor in blank.tensors().values())


def test_tensors_of_another_decoder_are_refused_by_name():
    tensors = state_of({}).tensors()
    del tensors["position"]
    with pytest.raises(ValueError, match=r"'position' is in one of them only"):
        state_of({}).with_tensors(tensors)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_nan_fills_the_layers_of_the_marked_samples_only(options):
    state = state_of(options)
    filled = state.with_nan(torch.tensor([False, True, False]))
    for before, after in zip(state.layers, filled.layers, strict=True):
        for old, new in zip(before, after, strict=True):
            assert new[1].isnan().all()
            assert torch.equal(new[[0, 2]], old[[0, 2]])
    assert filled.position is state.position
    assert filled.memories is state.memories


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_size_is_that_of_all_tensors_together(options):
    state = state_of(options)
    sizes = [t.numel() * t.element_size() for t in state.tensors().values()]
    assert state.nbytes == sum(sizes) > 0


def test_a_detached_state_has_no_history():
    decoder = decoder_of({})
    _, state = decoder(torch.randn(2, 5, 16, requires_grad=True), state=decoder.init_state(2))
    assert any(tensor.requires_grad for tensor in state.tensors().values())
    assert not any(tensor.requires_grad for tensor in state.detach().tensors().values())


@torch.no_grad()
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_joined_states_continue_as_each_would_alone(options):
    decoder = decoder_of(options)
    states = [
        state_of(options, 1, length, context) for length, context in ((9, 11), (2, 4), (5, 7))
    ]
    x = torch.randn(3, 1, 16)
    together, joined = decoder.step(x, join_states(states))
    alone = [decoder.step(x[i : i + 1], state)[0] for i, state in enumerate(states)]
    assert joined.position.tolist() == [10, 3, 6]
    assert_close(together, torch.cat(alone))


def test_no_state_at_all_cannot_be_joined():
    with pytest.raises(ValueError, match="at least one state to join: got none"):
        join_states([])
