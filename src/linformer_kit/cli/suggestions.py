"""What was probably meant by an option or a command that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from ..errors import cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Names that other programs have for a command.
SYNONYMS = {
    "benchmark": "bench",
    "benchmarks": "bench",
    "classify": "predict",
    "eval": "evaluate",
    "fill": "predict",
    "finetune": "train",
    "fit": "train",
    "generate": "predict",
    "infer": "predict",
    "inference": "predict",
    "list": "runs",
    "ls": "runs",
    "ner": "predict",
    "onnx": "export",
    "plot": "report",
    "preprocess": "prepare",
    "pretrain": "train",
    "run": "train",
    "score": "evaluate",
    "sweep": "compare",
    "test": "evaluate",
    "tokenize": "prepare",
    "translate": "predict",
    "tune": "compare",
}
# Benchmarks that are not commands: they are scripts of a checkout.
SCRIPTS = {
    name: f"python -m benchmarks.{name.replace('-', '_')}"
    for name in ("budget", "keras-time", "onnx-time", "peers", "roofline")
}
# Names that other programs have for the option that names the configuration.
CONFIGURATION = ("config", "config-file", "configuration", "cfg", "conf", "yaml", "c", "f", "file")
# Names that other programs have for a key.
KEYS = {
    "batch": "train.batch_size",
    "data": "data.train",
    "dropout": "model.hidden_dropout_prob",
    "dim": "model.hidden_size",
    "depth": "model.num_hidden_layers",
    "heads": "model.num_attention_heads",
    "learning_rate": "train.lr",
    "max_steps": "train.steps",
    "num_heads": "model.num_attention_heads",
    "num_layers": "model.num_hidden_layers",
    "output": "run",
    "output_dir": "run",
    "out": "run",
}


def command(
    program: str, name: str, known: Sequence[str], below: Mapping[str, Sequence[str]]
) -> str:
    """A sentence about a command that `program` does not have; `below` are those of its groups."""
    if name in SCRIPTS:
        return f"In a checkout, run: {SCRIPTS[name]}"
    near = difflib.get_close_matches(name, known, n=1)
    meant = SYNONYMS.get(name) or (near[0] if near else None)
    if meant in known:
        return f"Did you mean '{program} {meant}'?"
    for group, commands in below.items():
        if name in commands:
            return f"Did you mean '{program} {group} {name}'?"
    return f"There are: {', '.join(known)}."


def option(name: str, context: Any, arguments: Sequence[str]) -> str:
    """A sentence about an option that a command does not have; `context` is typer's."""
    bare = name.lstrip("-")
    value = value_of(name, arguments)
    program = str(context.command_path)
    params = {param.name: param for param in context.command.params}
    takes = [param for param in params.values() if param.param_type_name == "argument"]
    if "config" in params and bare in CONFIGURATION:
        return f"Give the configuration as the first argument: {program} {value or 'CONFIG.yaml'}"
    if bare.replace("-", "_") in {param.name for param in takes}:
        metavar = value or bare.replace("-", "_").upper()
        return f"Give it as an argument, without the option: {program} {metavar}"
    if "overrides" in params:
        key = _key(bare)
        if key is not None:
            return f"Use {key}={value or 'VALUE'}: keys of the configuration are given without --."
    options = [one for param in params.values() for one in param.opts if one.startswith("--")]
    near = difflib.get_close_matches(name, options, n=1)
    if near:
        return f"Did you mean {near[0]}?"
    if "overrides" in params:
        return "Keys of the configuration are given as KEY=VALUE, for example train.steps=100."
    return f"See {program} --help."


def _key(bare: str) -> str | None:
    """The key of the configuration that an option looks like."""
    from ..config.load import all_keys

    name = bare.replace("-", "_")
    known = all_keys()
    if name in known:
        return name
    ends = {key.rpartition(".")[2]: key for key in reversed(known)}
    if name in ends:
        return ends[name]
    if name in KEYS:
        return KEYS[name]
    near = difflib.get_close_matches(name, [*known, *ends], n=1, cutoff=0.8)
    return ends.get(near[0], near[0]) if near else None


def value_of(name: str, arguments: Sequence[str]) -> str | None:
    """What follows an option on the command line, the last time if it is there several times."""
    for place in reversed(range(len(arguments))):
        given, equals, value = arguments[place].partition("=")
        if given == name and equals:
            return cut(value)
        if given == name and place + 1 < len(arguments):
            following = arguments[place + 1]
            return None if following.startswith("--") else cut(following)
    return None
