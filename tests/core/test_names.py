"""Arguments by the names of other libraries: the error says the name here."""

from __future__ import annotations

import inspect

import linformer
import linformer_pytorch
import pytest
import torch
from torch import nn

from linformer_kit import LinformerAttention, LinformerDecoder, LinformerEncoder
from linformer_kit.core.names import ABSENT, EQUIVALENT, unknown_names

ENCODER = {"dim": 8, "depth": 1, "num_heads": 2, "max_length": 8, "k": 2}
CLASSES = (LinformerAttention, LinformerEncoder, LinformerDecoder)
THEIRS = {
    "linformer-pytorch": (linformer_pytorch.Linformer, linformer_pytorch.LinformerLM),
    "linformer": (linformer.Linformer, linformer.LinformerSelfAttention, linformer.LinformerLM),
    "torch.nn": (
        nn.TransformerEncoderLayer,
        nn.TransformerEncoderLayer.forward,
        nn.TransformerEncoder.forward,
        nn.TransformerDecoderLayer.forward,
        nn.MultiheadAttention.forward,
    ),
}


def arguments(function) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


OURS = set().union(*(arguments(each) | arguments(each.forward) for each in CLASSES))


@pytest.mark.parametrize("library", THEIRS)
def test_every_argument_of_the_library_has_an_answer(library):
    theirs = set().union(*map(arguments, THEIRS[library])) - OURS
    theirs -= {"average_attn_weights", "memory_is_causal", "tgt_is_causal", "value"}
    assert theirs <= EQUIVALENT[library].keys() | ABSENT[library].keys()


@pytest.mark.parametrize("cls", CLASSES)
def test_every_suggested_name_exists_somewhere(cls):
    for names in EQUIVALENT.values():
        for name in names:
            message = unknown_names(cls.__name__, [name], arguments(cls))
            assert name in message
    targets = {t for names in EQUIVALENT.values() for t in names.values() if t.startswith("{")}
    for target in targets:
        assert target[1 : target.index("}")] in OURS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dim_k": 2},
            "LinformerEncoder got unexpected argument 'dim_k'. linformer-pytorch's dim_k is k "
            "here.",
        ),
        (
            {"input_size": 8, "channels": 8},
            "LinformerEncoder got unexpected arguments 'input_size', 'channels'. "
            "linformer-pytorch's input_size is max_length here. linformer-pytorch's channels is "
            "dim here.",
        ),
        (
            {"nhead": 2},
            "LinformerEncoder got unexpected argument 'nhead'. linformer-pytorch's and torch.nn's "
            "nhead is num_heads here.",
        ),
        (
            {"reversible": True},
            "LinformerEncoder got unexpected argument 'reversible'. linformer's reversible has no "
            "equivalent here: gradient_checkpointing=True saves memory instead.",
        ),
        (
            {"hidden_size": 8},
            "LinformerEncoder got unexpected argument 'hidden_size'. LinformerConfig's "
            "hidden_size is dim here.",
        ),
        (
            {"num_head": 8},
            "LinformerEncoder got unexpected argument 'num_head'. Did you mean 'num_heads'?",
        ),
        ({"zebra": 1}, "LinformerEncoder got unexpected argument 'zebra'."),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_error_names_the_argument_here(options, message):
    with pytest.raises(TypeError) as raised:
        LinformerEncoder(**options)  # before the arguments that are missing
    assert str(raised.value) == message


def test_a_name_the_class_has_no_use_for_says_so():
    with pytest.raises(TypeError, match=r"seq_len is max_length here, which LinformerDecoder does"):
        LinformerDecoder(dim=8, depth=1, num_heads=2, seq_len=9)
    with pytest.raises(TypeError, match=r"num_layers is depth here, which LinformerAttention"):
        LinformerAttention(dim=8, num_heads=2, num_layers=2)


def test_a_call_explains_its_masks():
    x, mask = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    with pytest.raises(
        TypeError, match=r"torch.nn's src_key_padding_mask is mask, inverted \(True = a real"
    ):
        LinformerEncoder(**ENCODER)(x, src_key_padding_mask=mask)
    with pytest.raises(TypeError, match=r"transformers' attention_mask is mask, boolean"):
        LinformerEncoder(**ENCODER)(x, attention_mask=mask)


def test_signatures_and_subclasses_are_as_they_were():
    assert {"dim", "k", "max_length"} <= arguments(LinformerEncoder)
    assert {"x", "mask"} == arguments(LinformerEncoder.forward)

    class Mine(LinformerEncoder):
        def __init__(self, width: int) -> None:
            super().__init__(**ENCODER | {"dim": width})

    assert Mine(width=8)(torch.randn(1, 3, 8)).shape == (1, 3, 8)
