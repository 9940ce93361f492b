"""Bad inputs for every command, as data: how to make each, and the command line that meets it.

A case gets a folder of its own that holds a copy of a tiny finished run of each task (`mlm/`,
`classify/`, `clm/`), its configuration and its data, and returns the arguments of one command.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


TASKS = ("mlm", "clm", "classify")
TEXT = {"mlm": "The old <mask>og", "clm": "The old", "classify": "a dog"}


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, where: Path) -> None:
        self.where = str(where)

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.where,))


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def act(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        change(tensors)
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})

    return act


def config(**values: Any) -> Callable[[Path], None]:
    def act(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return act


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes(content) and None


def gone(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def pickled(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(model / "owned")))


def truncated(name: str) -> Callable[[Path], None]:
    def act(model: Path) -> None:
        file = model / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return act


def first(tensors: dict[str, torch.Tensor]) -> str:
    return sorted(tensors)[0]


# What can be wrong with the folder of a model.
MODEL_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "weights truncated": truncated("model.safetensors"),
    "weights garbage": put("model.safetensors", b"garbage" * 50),
    "weights empty": put("model.safetensors", b""),
    "weights missing": gone("model.safetensors"),
    "weights pickled": pickled,
    "a tensor missing": weights(lambda w: w.pop(first(w))),
    "a tensor too many": weights(lambda w: w.update(more=torch.ones(2))),
    "a tensor of another shape": weights(lambda w: w.update({first(w): torch.ones(2, 3)})),
    "a tensor of NaN": weights(lambda w: w[first(w)].fill_(float("nan"))),
    "config missing": gone("config.json"),
    "config garbage": put("config.json", b"{{{"),
    "config a list": put("config.json", b"[1]"),
    "config binary": put("config.json", b"\xff\xfe\x00\x01"),
    "config nested": put("config.json", b"[" * 100_000),
    "config of another class": config(architectures=["BertModel"]),
    "config with a wrong type": config(hidden_size="wide"),
    "config with NaN": config(layer_norm_eps=float("nan")),
    "config with an absurd size": config(hidden_size=10**9),
    "config with an unknown key": config(hiden_size=16),
}
# An encoder is read from a model of any class, and what belongs to a head is left.
FINE_FOR_AN_ENCODER = ("a tensor too many", "config of another class")

# What can be wrong with the folder of a run, beside its models.
RUN_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "config.yaml missing": gone("config.yaml"),
    "config.yaml empty": put("config.yaml", b""),
    "config.yaml binary": put("config.yaml", b"\xff\xfe\x00\x01"),
    "config.yaml a list": put("config.yaml", b"- 1\n- 2\n"),
    "config.yaml recursive": put("config.yaml", b"a: &a [*a]\n"),
    "config.yaml nested": put("config.yaml", b"[" * 20_000),
    "config.yaml with code": put("config.yaml", b"a: !!python/object/apply:os.system [ls]\n"),
    "config.yaml of another task": put("config.yaml", b"task: sing\nrun: x\ndata: {train: x}\n"),
    "both models missing": lambda run: (
        [shutil.rmtree(run / n) for n in ("best", "last")] and shutil.rmtree(run / "checkpoints")
    ),
    "models that are files": lambda run: [
        shutil.rmtree(run / name) or (run / name).write_text("x") for name in ("best", "last")
    ],
}

# Values that no configuration may have.
OVERRIDES = (
    "model.k=abc", "model.k=-1", "model.k=0", "model.k=1.5", "model.k=.nan", "model.k=[8, x]",
    "model.k=10000", "model.k=true", "model.plan=foo", "model.plan={shorten: rows}",
    "model.layer_norm_eps=-1", "model.layer_norm_eps=.nan", "model.layer_norm_eps=.inf",
    "model.hidden_size=100000000", "model.hidden_size=0", "model.hidden_size=17",
    "model.hidden_size=1000000", "model.hidden_size=abc", "model.num_hidden_layers=-3",
    "model.num_hidden_layers=100000", "model.num_attention_heads=3", "model.head_dim=0",
    "model.intermediate_size=-1", "model.projection=quadratic", "model.sharing=everything",
    "model.hidden_act=tanh", "model.hidden_dropout_prob=1.5", "model.hidden_dropout_prob=-0.1",
    "model.initializer_range=.nan", "model.norm=middle", "model.neighbours=4",
    "model.hiden_size=16", "model.vocab_size=5", "model=[]", "model=3",
    "train.steps=0", "train.steps=-1", "train.steps=1e3", "train.steps=abc", "train.steps=1e400",
    "train.stpes=10", "train.batch_size=0", "train.batch_size=1000000000000",
    "train.batch_size=7.5", "train.accumulate=3", "train.lr=-1", "train.lr=0", "train.lr=.nan",
    "train.lr=fast", "train.schedule=random", "train.precision=float8", "train.precision=float16",
    "train.threads=100000", "train.threads=-1", "train.workers=100000", "train.clip=-1",
    "train.fsdp=true", "train.fsdp=maybe", "train.keep=0", "train.mask_share=2",
    "train.label_smoothing=0.1", "train.beta1=1.0", "train=", "train=[1]",
    "evaluate.beams=0", "evaluate.max_examples=-1", "evaluate.batch_size=0",
    "data.max_length=0", "data.max_length=-5", "data.max_length=1000000000000",
    "data.train=", "data.train=' '", "data.train=nowhere.txt", "data.train=[]", "data.train={}",
    "data.train=/dev/zero", "data.train=nothing/*.txt", "data.train=3", "data.cache=",
    "data.cache=tiny.yaml", "data.format=xml", "data.documents=page", "data.validation_share=1.0",
    "data.test_share=-0.1", "data.validation_share=0.999", "data.options={a: 1}",
    "data.max_document_mb=0", "data.features=x", "data.text=nothing",
    "tokenizer.kind=magic", "tokenizer.vocab_size=0", "tokenizer.path=nowhere",
    "tokenizer.path=tiny.yaml", "tokenizer.train_mb=0", "seed=-1", "seed=1.5", "seed=99999999999",
    "run=", "run=tiny.yaml", "run=tiny.yaml/below", "task=sing", "task=", "nothing=1", "=1", "x",
    "train..steps=1", ".=1", "train.steps=[", "a.b.c.d=1", "train.steps=&a [*a]",
)  # fmt: skip

# Configuration files that are none.
CONFIGS = {
    "missing": None,
    "empty": b"",
    "binary": b"\xff\xfe\x00\x01" * 9,
    "NUL": b"task: mlm\x00\n",
    "a list": b"- task: mlm\n",
    "a word": b"mlm\n",
    "a key twice": b"task: mlm\ntask: clm\n",
    "recursive": b"task: mlm\ndata: &a {train: *a}\n",
    "nested": b"{" * 20_000,
    "billion laughs": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghij"),
    "code": b"task: !!python/object/apply:os.mkdir [owned]\n",
    "two documents": b"task: mlm\n---\ntask: clm\n",
    "tabs": b"task:\n\tmlm\n",
    "keys that are numbers": b"1: 2\ntask: mlm\n",
    "no data": b"task: mlm\nrun: r\n",
}

# Arguments, each with the name of the run or configuration it needs.
ARGUMENTS = (
    "", "nonsense", "fit tiny.yaml", "trian tiny.yaml", "train", "train --config tiny.yaml",
    "train tiny.yaml --steps 10", "train tiny.yaml --overwrit", "train .", "train nowhere.yaml",
    "prepare", "prepare nowhere.yaml", "evaluate", "evaluate nowhere", "evaluate tiny.yaml",
    "evaluate mlm/run --part tset", "evaluate mlm/run --model bets", "evaluate mlm/run --model 99",
    "evaluate mlm/run --model ../../..", "evaluate .", "predict nowhere x", "predict mlm/run x",
    "predict mlm/run --file nowhere.txt", "predict mlm/run --file classify/labels.csv",
    "predict mlm/run --file .", "predict mlm/run a --file mlm/text.txt",
    "predict mlm/run 'a <mask>' --top 0", "predict mlm/run 'a <mask>' --temperature 1",
    "predict clm/run a --temperature -1", "predict clm/run a --temperature 1e-320",
    "predict clm/run a --temperature nan", "predict clm/run a --max-new-tokens 0",
    "predict clm/run a --top 3",
    "predict mlm/run 'a <mask>' --model last2", "predict mlm/run 'a <mask>' --onnx nowhere.onnx",
    "predict mlm/run 'a <mask>' --onnx tiny.yaml", "compare mlm/tiny.yaml",
    "compare mlm/tiny.yaml --vary", "compare mlm/tiny.yaml --vary k",
    "compare mlm/tiny.yaml --vary model.k=", "compare mlm/tiny.yaml --vary model.k=abc",
    "compare mlm/tiny.yaml --vary model.kk=1,2", "compare mlm/tiny.yaml --vary model.k=4,8 --out .",
    "compare mlm/tiny.yaml --vary model.k=4 --seeds 0", "runs nowhere", "runs tiny.yaml",
    "export nowhere --to a.onnx", "export mlm/run --to a.txt", "export mlm/run --to mlm",
    "export mlm/run --to thesis.onnx", "export mlm/run",
    "spectrum nowhere --text mlm/text.txt", "spectrum mlm/run --text nowhere.txt",
    "spectrum mlm/run --text .", "spectrum mlm/run --text mlm/text.txt --length 0",
    "spectrum mlm/run --text mlm/text.txt --length 100000",
    "spectrum mlm/run --text mlm/text.txt --pieces 0",
    "spectrum mlm/run --text mlm/text.txt --rank 0", "spectrum clm/run --text mlm/text.txt",
    "spectrum mlm/run --text mlm/text.txt --out thesis.txt",
    "heads mlm/run --text mlm/text.txt --layer 9", "heads mlm/run --text mlm/text.txt --head 0",
    "heads mlm/run --text mlm/text.txt --length -1", "heads mlm/run", "heads nowhere --text x",
    "report", "report nowhere", "report tiny.yaml", "report empty",
    "report mlm/run --out thesis.txt", "report mlm/run --out .",
    "report mlm/run --out nowhere/below/r.html --pictures x",
    "bench nonsense", "bench attention --lengths x", "bench attention --lengths ,",
    "bench attention --lengths 0", "bench attention --lengths 1000000000000",
    "bench attention --k 0",
    "bench attention --modes singing", "bench attention --threads 100000", "bench grid --rounds -1",
    "bench attention --contestants nobody", "bench growth --lengths 1000000000000",
    "bench decode --k -1", "bench growth --out thesis.txt --lengths 64",
    "bench grid --quick --out .", "bench attention --models nobody", "bench growth --seed -1",
    "bench peers", "keras-time", "onnx-time --dim 0", "bench decode --k",
)  # fmt: skip


def onnx_file(content: bytes) -> Callable[[Path], list[str]]:
    def case(folder: Path) -> list[str]:
        (folder / "bad.onnx").write_bytes(content)
        return ["predict", "mlm/run", TEXT["mlm"], "--onnx", "bad.onnx"]

    return case
