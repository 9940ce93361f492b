"""Small modules of every kind and inputs for them, for properties that all modules must have."""

from __future__ import annotations

import torch
from torch import nn

from linformer_kit import LinformerAttention, LinformerDecoder, LinformerEncoder
from linformer_kit.core.cpu import blocks, chunk_attention, feedforward

DIM, LENGTH = 4, 5
DECODERS = ["decoder", "full-decoder", "cross-decoder"]
MODELS = ["attention", "window-attention", "encoder", "window-encoder", *DECODERS]


def build(name: str, **options) -> nn.Module:
    sizes = {"dim": DIM, "num_heads": 2}
    if name.startswith("window-"):
        return build(name.removeprefix("window-"), **{"window": 2, "global_tokens": 1} | options)
    if name == "attention":
        return LinformerAttention(**sizes | {"max_length": 7, "k": 3} | options)
    if name == "encoder":
        sizes |= {"max_length": 7, "k": 3, "depth": 1, "ff_dim": 6}
        return LinformerEncoder(**sizes | options)
    sizes |= {"depth": 1, "ff_dim": 6, "k": 2, "window": 2}
    if name == "full-decoder":
        sizes["attention"] = "full"
    if name == "cross-decoder":
        sizes |= {"cross_attention": True, "context_k": 3}
    return LinformerDecoder(**sizes | options)


def model_of(name: str, *, seed: int = 0, **options) -> nn.Module:
    """In float64, with biases that are not zero."""
    torch.manual_seed(seed)
    model = build(name, **options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.double()


def rows_of(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, DIM, dtype=torch.float64, generator=generator)


def inputs_of(name: str, masked: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """x (2, LENGTH, DIM) and the keyword arguments of a call."""
    others = {}
    if masked:
        others["mask"] = torch.tensor([[True] * LENGTH, [True, True, True, False, False]])
    if name == "cross-decoder":
        others["context"] = rows_of(2, 4, seed=2)
        if masked:
            others["context_mask"] = torch.tensor([[True] * 4, [True, False, False, False]])
    return rows_of(2, LENGTH), others


def small_blocks(monkeypatch) -> None:
    """So that every input is longer than a block."""
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 2)
    monkeypatch.setattr(feedforward, "rows_in_block", lambda width: 1)
    monkeypatch.setattr(chunk_attention, "rows_in_block", lambda width: 2)


def jacobian(model: nn.Module, x: torch.Tensor, others: dict) -> torch.Tensor:
    """By ordinary backward passes, one for each value of the output."""
    x = x.clone().requires_grad_()
    y = model(x, **others)
    rows = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in y.flatten()]
    return torch.stack(rows).view(*y.shape, *x.shape)
