"""Sequence parallel inside DDP and FSDP: the curve of one process, activations divided by ranks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from linformer_kit.models import LinformerConfig, LinformerForMaskedLM
from linformer_kit.models.loss import IGNORED
from linformer_kit.parallel import average_gradients, parallelize

from .cases import mesh_of, own_part, randomized
from .model_cases import TINY, VOCABULARY

if TYPE_CHECKING:
    from .ranks import Ranks

SAMPLES, LENGTH = 4, 37


def _step(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask and labels of one step; every sample has as many labels."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(2, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.tensor([37, 36, 20, 9])[:, None]).long()
    labels = torch.full_like(ids, IGNORED)
    labels[:, 1:8:2] = ids[:, 1:8:2] % 7
    return ids, mask, labels


def _train(
    model: nn.Module, steps: int, samples: slice, here: slice, after: Any = lambda: None
) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        ids, mask, labels = (each[samples, here] for each in _step(step))
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        after()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def check_training(way: str, *, data: int, steps: int) -> None:
    """The losses and the weights after training are those of one process."""
    mesh = mesh_of(4 // data)
    config = LinformerConfig(**TINY)
    whole = randomized(LinformerForMaskedLM, config).train()
    model = parallelize(copy.deepcopy(whole), mesh)
    expected = _train(whole, steps, slice(None), slice(None))
    everyone = mesh._flatten("all") if mesh.ndim > 1 else mesh
    after = lambda: None  # noqa: E731
    wrapped: nn.Module = model
    if way == "ddp":
        wrapped = DistributedDataParallel(model, process_group=everyone.get_group())
    elif way == "fsdp":
        for layer in model.linformer.encoder.layers:
            fully_shard(layer, mesh=everyone)
        wrapped = fully_shard(model, mesh=everyone)
    else:
        after = lambda: average_gradients(model, mesh)  # noqa: E731
    each = SAMPLES // data
    first = mesh["data"].get_local_rank() * each
    losses = _train(wrapped, steps, slice(first, first + each), own_part(mesh, LENGTH), after)
    mean = torch.stack(losses)
    torch.distributed.all_reduce(mean, group=mesh["data"].get_group())
    torch.testing.assert_close(mean / data, torch.stack(expected), rtol=1e-7, atol=1e-9)
    state = model.state_dict()
    for name, value in whole.state_dict().items():
        found = state[name]
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("way", ["ddp", "fsdp", "none"])
@pytest.mark.parametrize("data", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_wrapped_model_trains_as_one_process(ranks: Ranks, way: str, data: int) -> None:
    ranks.run(check_training, way, data=data, steps=5)


@pytest.mark.slow
def test_fifty_steps_give_the_same_curve(ranks: Ranks) -> None:
    ranks.run(check_training, "ddp", data=2, steps=50)


def saved_bytes(sequence: int) -> int:
    """What autograd saves of one forward call on this rank."""
    mesh = mesh_of(sequence)
    config = LinformerConfig(**{**TINY, "max_position_embeddings": 512})
    model = parallelize(randomized(LinformerForMaskedLM, config).train(), mesh)
    own = own_part(mesh, 512)
    ids = torch.randint(2, VOCABULARY, (1, 512))[:, own]
    parameters = {each.data_ptr() for each in model.parameters()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, labels=ids % 7)
    return sum(seen.values())


@pytest.mark.slow
def test_activations_of_a_rank_fall_with_the_number_of_ranks(ranks: Ranks) -> None:
    two, four = (max(ranks.run(saved_bytes, sequence)) for sequence in (2, 4))
    assert four < 0.62 * two  # a half, and the window's halo and k rows
