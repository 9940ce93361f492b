"""What users see, as plain values, by public names alone: any source tree can be asked."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import linformer_kit
from linformer_kit import models

FILES = Path(__file__).parent / "files"
KINDS = ("linear", "conv", "mean", "max", "pool", "fixed", "dynamic", "full")
SHARINGS = ("none", "headwise", "kv", "layerwise")
WINDOWS = (0, 8)
LENGTH, DIM = 45, 32

# Every quick configuration, cut to some steps.
QUICK = ("classify", "clm", "embed", "listops", "mlm", "tag", "translate")
STEPS = 12


def commands() -> dict[str, str]:
    """The help of every command, without frames and line breaks."""
    found: dict[str, str] = {}
    waiting = [""]
    while waiting:
        name = waiting.pop()
        lines = _help(name).splitlines()
        text = " ".join(" ".join(line.strip("│╭╮╰╯─ ") for line in lines).split())
        text = re.sub(r"(--threads [^-]*default: )\d+", r"\1cores", text)
        found[f"linformer {name}".strip()] = text
        inside = False
        for line in lines:
            inside = "─ Commands" in line or (inside and line.startswith("│"))
            named = re.match(r"│ ([a-z][a-z0-9-]*) ", line) if inside else None
            if named:
                waiting.append(f"{name} {named[1]}".strip())
    return dict(sorted(found.items()))


def _help(name: str) -> str:
    told = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    call = [sys.executable, "-m", "linformer_kit.cli", *name.split(), "--help"]
    return subprocess.run(
        call, env=os.environ | told, check=True, capture_output=True, text=True
    ).stdout


def routes() -> dict[str, Any]:
    """Each route, with the fields of its body and the codes of its answers."""
    from linformer_kit.serve.app import create_app
    from linformer_kit.serve.settings import Settings

    schema = create_app({}, Settings())[0].openapi()

    def resolved(value: Any) -> Any:
        if isinstance(value, dict) and "$ref" in value:
            return resolved(schema["components"]["schemas"][value["$ref"].rpartition("/")[2]])
        if isinstance(value, dict):
            kept = {name: resolved(each) for name, each in value.items() if name != "title"}
            kept.pop("description", None) if isinstance(kept.get("description"), str) else None
            return kept
        return [resolved(each) for each in value] if isinstance(value, list) else value

    return {
        f"{method.upper()} {path}": {
            "body": resolved(route.get("requestBody", {}).get("content", {})),
            "answers": sorted(route["responses"]),
        }
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    }


def _model_cases() -> dict[str, tuple[str, dict[str, Any]]]:
    small = {
        "vocab_size": 40,
        "hidden_size": DIM,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": LENGTH,
        "k": 9,
        "num_slots": 7,
    }
    classes = [name for name in models.__all__ if name.startswith("Linformer")]
    classes = [name for name in classes if name not in ("LinformerCache", "LinformerConfig")]
    cases = {name: (name, small) for name in classes}
    varied: dict[str, dict[str, Any]] = {
        "like BERT": {"norm": "post", "pooler": True, "position_embedding_type": "learned"},
        "like ELECTRA": {"embedding_size": 24, "lm_act": "gelu", "norm": "post"},
        "pool, headwise": {"projection": "pool", "sharing": "headwise"},
        "bias of rows": {"projection_bias": True, "sharing": "none"},
        "grouped heads": {"num_key_value_heads": 2, "sharing": "none", "window": 8},
        "full layers": {"full_layers": [1], "k": [9, 5], "sharing": "kv"},
        "sums and neighbours": {"moving_average": True, "neighbours": 3},
        "swiglu, no bias": {"hidden_act": "swiglu", "bias": False, "qkv_bias": True},
        "dynamic, window": {"projection": "dynamic", "window": 8, "global_tokens": 2},
        "untied": {"tie_word_embeddings": False, "lm_transform": False},
    }
    for name, options in varied.items():
        cases[f"MaskedLM, {name}"] = ("LinformerForMaskedLM", small | options)
    cases["CausalLM, full"] = (
        "LinformerForCausalLM",
        small | {"causal_attention": "full", "num_key_value_heads": 2},
    )
    cases["Seq2Seq, own sizes"] = (
        "LinformerForConditionalGeneration",
        small | {"decoder_vocab_size": 30, "share_embeddings": False, "decoder_hidden_size": 16},
    )
    cases["SequenceClassification of vectors"] = (
        "LinformerForSequenceClassification",
        small | {"feature_size": 5, "num_labels": 3},
    )
    return cases


def _build(name: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = getattr(models, name)(models.LinformerConfig(**options))
    return made


def state_dicts() -> dict[str, list[str]]:
    """The names and the shapes of all weights of every model."""
    found = {case: _named(_build(*how)) for case, how in _model_cases().items()}
    for kind, sharing in product(KINDS, SHARINGS):
        found[f"LinformerEncoder, {kind}, {sharing}"] = _named(_encoder(kind, sharing, window=0))
    decoder = linformer_kit.LinformerDecoder(
        dim=DIM, depth=1, num_heads=4, k=7, window=8, cross_attention=True
    )
    return found | {"LinformerDecoder with a context": _named(decoder)}


def _named(module: nn.Module) -> list[str]:
    return [f"{name} {tuple(value.shape)}" for name, value in module.state_dict().items()]


def _encoder(kind: str, sharing: str, *, window: int) -> linformer_kit.LinformerEncoder:
    torch.manual_seed(0)
    return linformer_kit.LinformerEncoder(
        dim=DIM,
        depth=2,
        num_heads=4,
        max_length=LENGTH,
        k=9,
        projection=kind,
        sharing=sharing,
        window=0 if kind == "full" else window,
        global_tokens=2 if window and kind != "full" else 0,
        dropout=0.1,
    )


def outputs() -> dict[str, dict[str, Tensor]]:
    """Outputs and gradients on fixed inputs: tensors by name, for each case."""
    found: dict[str, dict[str, Tensor]] = {}
    for kind, sharing, window, padded in product(KINDS, SHARINGS, WINDOWS, (False, True)):
        name = f"{kind}, {sharing}, window {window}" + (", padded" if padded else "")
        found[name] = _encoder_outputs(kind, sharing, window=window, padded=padded)
    for case, (kind, options) in _model_cases().items():
        found[case] = _model_outputs(kind, options)
    for attention in ("slots", "full"):
        torch.manual_seed(0)
        decoder = linformer_kit.LinformerDecoder(
            dim=DIM, depth=2, num_heads=4, k=7, window=8, attention=attention
        ).eval()
        found[f"LinformerDecoder, {attention}"] = {"output": decoder(_inputs())}
    return found


def _inputs() -> Tensor:
    return torch.randn(3, LENGTH, DIM, generator=torch.Generator().manual_seed(1))


def _encoder_outputs(kind: str, sharing: str, *, window: int, padded: bool) -> dict[str, Tensor]:
    encoder, x = _encoder(kind, sharing, window=window), _inputs()
    lengths = torch.tensor([LENGTH, 31, 4])
    mask = torch.arange(LENGTH) < lengths[:, None] if padded else None
    with torch.inference_mode():
        seen = encoder.eval()(x, mask=mask)
    torch.manual_seed(2)  # of dropout
    trained = encoder.train()(x, mask=mask)
    trained.square().sum().backward()
    gradients = {name: each.grad for name, each in encoder.named_parameters()}
    return {"output": seen, "in training": trained} | {
        f"gradient of {name}": each for name, each in gradients.items() if each is not None
    }


def _model_outputs(name: str, options: dict[str, Any]) -> dict[str, Tensor]:
    model = _build(name, options).eval()
    drawn = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 30, (2, LENGTH - 5), generator=drawn)
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    if "feature_size" in options:
        vectors = torch.randn(*ids.shape, options["feature_size"], generator=drawn)
        call = {"inputs_embeds": vectors, "attention_mask": mask}
    elif "MultipleChoice" in name:
        call = {"input_ids": ids[:, None].repeat(1, 2, 1)}
    else:
        call = {"input_ids": ids, "attention_mask": mask}
    if "Seq2Seq" in name or "ConditionalGeneration" in name:
        call["decoder_input_ids"] = ids[:, :11]
    with torch.inference_mode():
        made = model(**call)
    return {key: value for key, value in made.items() if isinstance(value, Tensor)}


def runs(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The weights of every quick configuration after some steps."""
    from safetensors.torch import load_file

    found = {}
    for name in QUICK:
        run = folder / name
        train(name, run)
        found[f"quick-{name}"] = load_file(run / "best" / "model.safetensors")
    return found


def train(name: str, run: Path, *more: str) -> None:
    steps = [f"train.{key}={STEPS}" for key in ("steps", "eval_every", "save_every")]
    few = ["train.warmup=2", "evaluate.max_examples=64"]
    linformer("train", f"quick-{name}", f"run={run}", *steps, *few, *more)


def linformer(*arguments: str) -> str:
    call = [sys.executable, "-m", "linformer_kit.cli", *arguments]
    told = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, check=False, capture_output=True, text=True, env=told)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return done.stdout


def numbers(tensors: dict[str, Tensor]) -> list[float]:
    """Three numbers of a case, which no change of a value in it leaves all as they are."""
    sums = torch.zeros(3, dtype=torch.float64)
    for index, value in enumerate(tensors.values()):
        flat = value.detach().double().flatten()
        weights = torch.cos(torch.arange(len(flat), dtype=torch.float64) + index)
        sums += torch.stack(
            [flat.abs().sum(), flat.square().sum(), (flat.abs() * (1 + weights)).sum()]
        )
    return [float(f"{each:.7g}") for each in sums]


def digest(tensors: dict[str, Tensor]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for name, value in tensors.items():
        made.update(name.encode())
        made.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()
