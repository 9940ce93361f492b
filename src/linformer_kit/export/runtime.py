"""Running an exported model with onnxruntime: numpy in, numpy out, no torch in between.

Generation holds one state, whose size does not depend on how much has been written (unless the
model has full attention, whose cache grows).

Legend: B batch, N positions, V vocabulary, W beams.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import reason_of
from ..generation import best_of_beams, choice, write_tokens
from . import ExportError, require
from .files import REMEDY, facts_of, read_graph

Array = NDArray[Any]
State = dict[str, Array]
PAST, PRESENT, CONTEXT = "past.", "present.", "memories."


def session(path: Path, *, threads: int | None = None) -> Any:
    """An onnxruntime session of a file, on the CPU; `files.py` says what is refused."""
    read_graph(path)
    return _session(path, threads)


def _session(path: Path, threads: int | None) -> Any:
    require("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; notes on fusing are of no use here
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(
            path, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its errors have no common base
        raise ExportError(
            f"{path} is not an ONNX file that onnxruntime can run: {reason_of(error)}"
        ) from error


class OnnxModel:
    """A file of `linformer export`. `facts` say what it is: kind, class, token ids, labels."""

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        path = Path(path)
        require("onnx", "onnxruntime")
        self.facts: dict[str, Any] = facts_of(path, read_graph(path))
        self.kind: str = self.facts["kind"]
        files = self.facts["files"]
        if self.facts["graph"] == "encoder":
            raise ExportError(f"{path} is the encoder of {files['step']}: run that one.")
        self._session = _session(path, threads)
        self._encoder = None
        if self.kind == "seq2seq":
            encoder = path.with_name(files["encoder"])
            if not encoder.is_file():
                raise ExportError(
                    f"{path} needs its encoder {encoder.name}, which is not beside it. Copy both "
                    "files of an export."
                )
            if facts_of(encoder, read_graph(encoder))["graph"] != "encoder":
                raise ExportError(f"{encoder} is not the encoder of {path}. {REMEDY}")
            self._encoder = _session(encoder, threads)
        self.input_names = [given.name for given in (self._encoder or self._session).get_inputs()]
        if self.kind != "encoder":
            self._check_step(path)

    def _check_step(self, path: Path) -> None:
        """Refuse a step whose graph is not the one that its metadata and its encoder speak of."""
        inputs = {given.name: given.shape[1:] for given in self._session.get_inputs()}
        outputs = {made.name for made in self._session.get_outputs()}
        state = {PAST + name: about["shape"] for name, about in self.facts["state"].items()}
        context = (
            set()
            if self._encoder is None
            else {PAST + made.name for made in self._encoder.get_outputs()}
        )
        fits = (
            len(inputs.keys() - state.keys() - context) == 1
            and inputs.keys() >= state.keys() | context
            and outputs >= {self.facts["result"]} | {PRESENT + n for n in self.facts["state"]}
            and all(_fits(inputs[name], shape) for name, shape in state.items() if name in inputs)
        )
        if not fits:
            raise ExportError(
                f"{path} does not have the inputs and outputs that its metadata "
                f"{'and its encoder ' if context else ''}speak of. {REMEDY}"
            )

    def __call__(self, **inputs: Array) -> dict[str, Array]:
        """What an encoder, with or without a head, makes of whole inputs."""
        if self.kind != "encoder":
            raise ExportError(f"a {self.kind} model goes step by step: use step or generate.")
        return _run(self._session, self._complete(inputs))

    def first_state(self, batch: int = 1, **source: Array) -> State:
        """The state before the first token; `source` is what the encoder reads."""
        if (self._encoder is None) != (not source):
            raise ExportError(
                f"a {self.kind} model starts from {'nothing' if source else 'a source'}: got "
                f"{', '.join(source) or 'nothing'}."
            )
        context: State = {}
        if self._encoder is not None:
            context = _run(self._encoder, self._complete(source))
            batch = len(next(iter(source.values())))
        return context | {
            name: np.zeros((batch, *about["shape"]), about["type"])
            for name, about in self.facts["state"].items()
        }

    def step(self, token: Array, state: State) -> tuple[Array, State]:
        """One token each, (B) or vectors (B, M) -> logits (B, V) or rows, and the state after."""
        (name,) = [n.name for n in self._session.get_inputs() if not n.name.startswith(PAST)]
        past = {PAST + part: array for part, array in state.items()}
        out = _run(self._session, {name: token[:, None], **past})
        after = {
            part.removeprefix(PRESENT): array
            for part, array in out.items()
            if part.startswith(PRESENT)
        }
        return out[self.facts["result"]][:, 0], state | after

    def read(self, ids: Array, mask: Array | None, state: State) -> tuple[Array, State]:
        """A prompt (B, N), padding on any side: the logits of each sample's last token."""
        self._check_reach(ids.shape[1], self.facts.get("reach"))
        logits: Array | None = None
        for place in range(ids.shape[1]):
            new, after = self.step(ids[:, place], state)
            here = np.ones(len(ids), bool) if mask is None else mask[:, place].astype(bool)
            logits = new if logits is None else np.where(here[:, None], new, logits)
            state = after if here.all() else _where(here, after, state)
        assert logits is not None
        return logits, state

    def generate(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        eos_token_id: int | list[int] | None = None,
        seed: int = 0,
    ) -> Array:
        """New tokens (B, up to max_new_tokens), filled up with the token of padding at their end.

        The likeliest token each time, or drawn if the temperature is above 0, or the best of
        `num_beams` texts by their log-likelihood over length ** length_penalty.
        """
        if num_beams > 1 and temperature > 0:
            raise ExportError(
                f"beams are not drawn: got {num_beams} and temperature {temperature}."
            )
        prompt = input_ids.shape[1] if self.kind == "causal" else 1
        self._check_reach(prompt, self.facts.get("reach"), more=max_new_tokens - 1)
        end = self.facts.get("eos_token_id") if eos_token_id is None else eos_token_id
        ends = [] if end is None else end if isinstance(end, list) else [end]
        pad = self.facts.get("pad_token_id")
        pad = (ends[0] if ends else 0) if pad is None else pad
        logits, state = self._begun(input_ids, attention_mask)
        decoder = OnnxDecoder(self, state)
        if num_beams > 1:
            return best_of_beams(
                decoder,
                logits,
                beams=num_beams,
                ends=ends,
                most=max_new_tokens,
                penalty=length_penalty,
                pad=pad,
            )
        random = np.random.default_rng(seed)

        def draw(likely: Array) -> Array:
            return np.array([random.choice(len(row), p=row / row.sum()) for row in likely])

        tokens = write_tokens(
            decoder,
            logits,
            choose=choice(temperature, draw),
            ends=ends,
            most=max_new_tokens,
            pad=pad,
        )
        return np.stack(list(tokens), axis=1)

    def _begun(self, ids: Array, mask: Array | None) -> tuple[Array, State]:
        if self.kind == "causal":
            return self.read(ids, mask, self.first_state(len(ids)))
        mask = np.ones_like(ids) if mask is None else mask
        start = self.facts.get("decoder_start_token_id")
        if start is None:
            raise ExportError("the model has no decoder_start_token_id, so it cannot begin.")
        state = self.first_state(input_ids=ids, attention_mask=mask)
        return self.step(np.full(len(ids), start, ids.dtype), state)

    def _complete(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """With a mask of ones and token types of zeros where they were left out."""
        complete = dict(inputs)
        main, *others = self.input_names
        if main in inputs:
            shape = inputs[main].shape if main == "input_ids" else inputs[main].shape[:-1]
            for name in others:
                if name not in inputs and name.endswith("mask"):
                    complete[name] = np.ones(shape, "int64" if "attention" in name else "bool")
                elif name == "token_type_ids" and name not in inputs:
                    complete[name] = np.zeros(shape, "int64")
        if set(complete) != set(self.input_names):
            raise ExportError(
                f"this model takes {', '.join(self.input_names)}: got {', '.join(inputs)}."
            )
        length = inputs[main].shape[-1 if main == "input_ids" else -2]
        self._check_reach(length, self.facts.get("longest"))
        return complete

    def _check_reach(self, length: int, longest: int | None, *, more: int = 0) -> None:
        if longest is not None and length + more > longest:
            written = f" and {more + 1} to write" if more and length <= longest else ""
            raise ExportError(
                f"this model takes at most {longest} positions: got {length}{written}. Shorten the "
                "input, or export a model with a larger max_position_embeddings or max_length."
            )


class OnnxDecoder:
    """A model that writes, and its state."""

    slice = 16  # of a prompt: it is read token by token

    def __init__(self, graph: OnnxModel, state: State | None = None) -> None:
        self.graph = graph
        self.state = graph.first_state() if state is None else state

    def read(self, ids: Array) -> Array:
        logits, self.state = self.graph.read(ids, None, self.state)
        return logits

    def rows(self, index: Array) -> OnnxDecoder:
        return OnnxDecoder(self.graph, {name: array[index] for name, array in self.state.items()})


def _run(running: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    names = [made.name for made in running.get_outputs()]
    try:
        return dict(zip(names, running.run(names, inputs), strict=True))
    except Exception as error:  # its errors have no common base
        raise ExportError(f"onnxruntime cannot run this input: {reason_of(error)}") from error


def _fits(declared: list[Any], shape: list[int]) -> bool:
    """Whether a shape without the batch is what a graph declares; a name there is any size."""
    return len(declared) == len(shape) and all(
        size == own for size, own in zip(declared, shape, strict=True) if isinstance(size, int)
    )


def _where(here: Array, new: State, old: State) -> State:
    """New where `here` (B), else old. (A cache that grows is as long as the longest sample's.)"""
    chosen = {}
    for name, array in new.items():
        before = old[name]
        if array.ndim > 1 and before.shape[1] < array.shape[1]:
            missing = [(0, 0)] * array.ndim
            missing[1] = (0, array.shape[1] - before.shape[1])
            before = np.pad(before, missing)
        chosen[name] = np.where(here.reshape(-1, *(1,) * (array.ndim - 1)), array, before)
    return chosen
