"""What `parallelize` changes, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.parallel import bounds, count_traffic, local_part, parallelize

from .cases import SMALL, mesh_of, own_part, randomized

if TYPE_CHECKING:
    from .ranks import Ranks


def test_parts_are_as_equal_as_possible_and_none_is_empty() -> None:
    assert bounds(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert bounds(10, 4, multiple_of=2) == [(0, 4), (4, 6), (6, 8), (8, 10)]
    assert bounds(9, 2, multiple_of=4) == [(0, 8), (8, 9)]
    assert bounds(5, 4, multiple_of=4) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    with pytest.raises(ValueError, match="at least one position for each of its ranks: got 3"):
        bounds(3, 4)


def _refusal(options: dict[str, Any], decoder: bool = False) -> str:
    build = LinformerDecoder if decoder else LinformerEncoder
    with pytest.raises(ValueError) as error:
        parallelize(build(**SMALL, **options), mesh_of(4))
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "decoder", "kind"),
    [
        ({"projection": "max", "k": 5, "max_length": 40}, False, "'max' (layers.0.attention)"),
        ({"projection": "pool", "k": 5, "max_length": 40}, False, "'pool' (layers.0.attention)"),
        ({"projection": "full"}, False, "'full' (layers.0.attention)"),
        ({"k": 5, "max_length": 40, "full_layers": [1]}, False, "'full' (layers.1.attention)"),
        ({"attention": "full"}, True, "'full' (layers.0.attention)"),
    ],
)
def test_kinds_that_are_no_sum_are_refused_by_name(
    ranks: Ranks, options: dict[str, Any], decoder: bool, kind: str
) -> None:
    for message in ranks.run(_refusal, options, decoder):
        assert f"got {kind}" in message


def _wrong_calls() -> dict[str, str]:
    mesh = mesh_of(4)
    rank = mesh["sequence"].get_local_rank()
    torch.manual_seed(0)
    model = parallelize(LinformerEncoder(**SMALL, k=5, max_length=40), mesh)
    decoder = parallelize(LinformerDecoder(**SMALL, k=3, window=4), mesh)
    mask = torch.ones(2, 3, dtype=torch.bool)
    if rank == 1:
        mask[0, 1] = False
    calls = {
        "empty": lambda: model(torch.randn(2, 0 if rank == 2 else 1, 16)),
        "batches": lambda: model(torch.randn(2 + (rank == 3), 4, 16)),
        "channels": lambda: model(torch.randn(2, 4, 16 + (rank == 1))),
        "too long": lambda: model(torch.randn(2, 11, 16)),
        "inner padding": lambda: decoder(torch.randn(2, 3, 16), mask=mask),
        "state": lambda: decoder.init_state(2),
        "weights": lambda: model.trace(torch.randn(2, 3, 16)),
    }
    messages = {}
    for name, call in calls.items():
        with pytest.raises(ValueError) as error:
            call()
        messages[name] = str(error.value)
    return messages


def _models_that_differ(how: str) -> str:
    """The message of the first call where rank 1 has another model."""
    mesh = mesh_of(4)
    other = mesh["sequence"].get_local_rank() == 1
    options = {"k": 5, "max_length": 40, "window": 4}
    if other and how in options:
        options[how] += 1
    torch.manual_seed(int(other and how == "seed"))
    model = LinformerEncoder(**SMALL, **options)
    if other and how == "one value":
        model.layers[1].attention.q_proj.weight.data[0, 0] += 1e-3
    model = parallelize(model.double() if other and how == "dtype" else model, mesh)
    x = torch.randn(2, 3, 16, dtype=next(model.parameters()).dtype)
    with pytest.raises(ValueError) as error:
        model(x)
    return str(error.value)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("seed", "weights"),
        ("one value", "weights"),
        ("k", "sizes, settings and dtypes"),
        ("window", "sizes, settings and dtypes"),
        ("dtype", "sizes, settings and dtypes"),
    ],
)
def test_every_rank_refuses_models_that_differ(ranks: Ranks, how: str, what: str) -> None:
    answers = ranks.run(_models_that_differ, how)
    assert len(set(answers)) == 1
    assert f"the same {what}: got 2 different ones, of rank 0, 2, 3; rank 1." in answers[0]


def _calls_after_the_first() -> tuple[int, int]:
    mesh = mesh_of(4)
    torch.manual_seed(0)
    model = parallelize(LinformerEncoder(**SMALL, k=5, max_length=40), mesh)
    found = []
    for _ in range(2):
        with count_traffic() as traffic, torch.no_grad():
            model(torch.randn(2, 3, 16))
        found.append(traffic.calls["all_gather"])
        torch.manual_seed(mesh["sequence"].get_local_rank())
        with torch.no_grad():  # weights that change are not compared again
            model.layers[0].attention.q_proj.weight.normal_()
    return found[0], found[1]


def test_models_are_compared_once(ranks: Ranks) -> None:
    assert set(ranks.run(_calls_after_the_first)) == {(2, 1)}


def test_every_rank_refuses_a_wrong_call(ranks: Ranks) -> None:
    """None is left waiting for one that has raised."""
    answers = ranks.run(_wrong_calls)
    for rank, messages in enumerate(answers):
        assert "at least one position: got parts of lengths [1, 1, 0, 1]" in messages["empty"]
        assert "got batches of sizes [2, 2, 2, 3]" in messages["batches"]
        refused = "must have shape (batch, length, 16): got (2, 4, 17)"
        expected = refused if rank == 1 else "refused by sequence rank 1"
        assert expected in messages["channels"]
        assert "at most max_length=40 positions: got 44" in messages["too long"]
        assert "padding at its end only" in messages["inner padding"]
        assert "has no state" in messages["state"]
        assert "are not returned" in messages["weights"]


def _same_names() -> None:
    plain = randomized(LinformerEncoder, **SMALL, k=5, max_length=40)
    model = parallelize(randomized(LinformerEncoder, **SMALL, k=5, max_length=40), mesh_of(2))
    assert isinstance(model, LinformerEncoder)
    assert type(model).__name__ == "LinformerEncoder"
    for (name, value), (other, same) in zip(
        plain.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(value, same)
    assert parallelize(model, mesh_of(2)) is model  # a second time changes nothing
    whole = torch.arange(10)[None]
    assert local_part(whole, mesh_of(2)).equal(whole[:, own_part(mesh_of(2), 10)])


def test_names_and_weights_stay(ranks: Ranks) -> None:
    ranks.run(_same_names)


def _other_models() -> str:
    with pytest.raises(ValueError) as error:
        parallelize(torch.nn.Linear(2, 2), mesh_of(2))
    return str(error.value)


def test_a_model_without_a_linformer_is_refused(ranks: Ranks) -> None:
    assert "got Linear" in ranks.run(_other_models)[0]
