"""What a model is exported as: one graph, or two, each a function of tensors with names.

| model                       | graphs                                                            |
|-----------------------------|-------------------------------------------------------------------|
| an encoder, with any head   | `model`: tokens or vectors, and mask -> what the model returns    |
| a causal model              | `step`: a token and the state before it -> logits, the state after |
| an encoder with a decoder   | `encoder`: the source -> the shortened context of each layer;     |
|                             | `step`: as above, with that context as a part of the state        |

A state goes by the names of the tensors of `DecoderState`, with `past.` or `present.` before them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.attention import LinformerAttention
from ..core.decoder import LinformerDecoder
from ..core.encoder import LinformerEncoder
from ..core.plan import Plan
from ..core.positions import LearnedPositions
from ..core.projection import LinearProjection
from ..core.projection_kinds import FixedProjection
from . import ExportError
from .runtime import CONTEXT, PAST, PRESENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..core.state import DecoderState

Tensors = dict[str, Tensor]
STEPS = 3  # that are compared from one state, each going on with what the step before gave


@dataclass(frozen=True)
class Graph:
    """A function of tensors, and how to call it."""

    name: str  # model, encoder or step
    function: Callable[[Tensors], Tensors]
    example: Callable[[int, int], Tensors]  # inputs for a batch and a length, with padding
    longest: int | None  # the longest input, where there is one


@dataclass(frozen=True)
class Export:
    """All graphs of a model, the one that is run first, first; and what a runtime has to know."""

    graphs: tuple[Graph, ...]
    facts: dict[str, Any]


def graphs_of(model: nn.Module) -> Export:
    """How this model is exported. It must be in float32, and in eval mode."""
    if isinstance(model, LinformerEncoder):
        return _reading(_core_encoder(model), {})
    if isinstance(model, LinformerDecoder):
        return _core_decoder(model)
    if type(model).__module__.startswith(__package__.rpartition(".")[0] + ".models."):
        return _transformers_model(model)
    raise ExportError(
        "what can be exported is a LinformerEncoder, a LinformerDecoder, or a model of "
        f"linformer_kit.models: got {type(model).__name__}."
    )


@contextmanager
def unfolded_context(model: nn.Module) -> Iterator[None]:
    """Keep contexts in the form a state has in every call: keys and values."""
    changed = []
    for module in model.modules():
        if isinstance(module, LinformerDecoder):
            for part in module.modules():
                if isinstance(part, LinformerAttention) and part.plan is None:
                    part.plan = Plan(shorten="input", attend="fused")
                    changed.append(part)
    try:
        yield
    finally:
        for part in changed:
            part.plan = None


def padding(batch: int, length: int) -> Tensor:
    """A mask (B, N) with fewer real positions from sample to sample, the first ones."""
    real = [max(1, length - sample * length // (batch + 1)) for sample in range(batch)]
    return torch.arange(length) < torch.tensor(real)[:, None]


def longest_of(*models: nn.Module) -> int | None:
    """The longest input, by what belongs to positions."""
    limits: list[int] = []
    for part in (part for model in models for part in model.modules()):
        if isinstance(part, LearnedPositions):
            limits.append(part.weight.shape[0])
        elif isinstance(part, LinearProjection | FixedProjection):
            limits.append(part.weight.shape[-1])
    return min(limits, default=None)


def _reading(graph: Graph, facts: dict[str, Any]) -> Export:
    """A model that reads all at once."""
    return Export((graph,), {"kind": "encoder", "longest": graph.longest, **facts})


def _core_encoder(encoder: LinformerEncoder) -> Graph:
    def function(inputs: Tensors) -> Tensors:
        return {"y": encoder(inputs["x"], mask=inputs["mask"])}

    def example(batch: int, length: int) -> Tensors:
        return {"x": torch.randn(batch, length, encoder.dim), "mask": padding(batch, length)}

    return Graph("model", function, example, longest_of(encoder))


def _core_decoder(decoder: LinformerDecoder) -> Export:
    width = _context_width(decoder)

    def contexts(batch: int, length: int) -> Tensors:
        return {
            "context": torch.randn(batch, length, width),
            "context_mask": padding(batch, length),
        }

    def summarise(inputs: Tensors) -> DecoderState:
        batch = inputs["context"].shape[0]
        return decoder.init_state(
            batch, context=inputs["context"], context_mask=inputs["context_mask"]
        )

    def step(inputs: Tensors, state: DecoderState) -> tuple[Tensor, DecoderState]:
        return decoder.step(inputs["x"], state)

    def read(batch: int, length: int, state: DecoderState) -> DecoderState:
        return decoder(torch.randn(batch, length, decoder.dim), state=state)[1]

    return _stepping(
        decoder,
        result="y",
        token=lambda batch: {"x": torch.randn(batch, 1, decoder.dim)},
        step=step,
        read=read,
        contexts=contexts if width else None,
        summarise=summarise if width else None,
        longest=longest_of(decoder),
        reach=None,
        facts={"kind": "seq2seq" if width else "causal"},
    )


def _transformers_model(model: nn.Module) -> Export:
    from ..models import (
        LinformerForCausalLM,
        LinformerForConditionalGeneration,
        LinformerSeq2SeqModel,
    )
    from ..models.cache import LinformerCache
    from ..models.decoder import LinformerDecoderModel

    config: Any = model.config
    source: Any
    known = ("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id")
    facts = {
        "class": type(model).__name__,
        **{name: getattr(config, name, None) for name in known},
        "id2label": getattr(config, "id2label", None),
    }
    if isinstance(model, LinformerForConditionalGeneration):
        decoding, head, source = model.decoder, model.lm_head, model.encoder
    elif isinstance(model, LinformerSeq2SeqModel):
        decoding, head, source = model.decoder, None, model.encoder
    elif isinstance(model, LinformerForCausalLM):
        decoding, head, source = model.linformer, model.lm_head, None
    elif isinstance(model, LinformerDecoderModel):
        decoding, head, source = model, None, None
    else:
        graph = Graph("model", _outputs_of(model), _inputs_of(model), longest_of(model))
        return _reading(graph, facts)
    vocabulary = decoding.config.vocab_size

    def step(inputs: Tensors, state: DecoderState) -> tuple[Tensor, DecoderState]:
        out = decoding(inputs["input_ids"], past_key_values=LinformerCache(state), use_cache=True)
        hidden = out.last_hidden_state
        return hidden if head is None else head(hidden), out.past_key_values.state

    def read(batch: int, length: int, state: DecoderState) -> DecoderState:
        ids = torch.randint(vocabulary, (batch, length))
        out = decoding(ids, past_key_values=LinformerCache(state), use_cache=True)
        return out.past_key_values.state

    def summarise(inputs: Tensors) -> DecoderState:
        hidden = source(**inputs).last_hidden_state
        mask = inputs["attention_mask"].bool()
        return decoding.decoder.init_state(hidden.shape[0], context=hidden, context_mask=mask)

    return _stepping(
        decoding.decoder,
        result="last_hidden_state" if head is None else "logits",
        token=lambda batch: {"input_ids": torch.randint(vocabulary, (batch, 1))},
        step=step,
        read=read,
        contexts=None if source is None else _inputs_of(source),
        summarise=None if source is None else summarise,
        longest=None if source is None else longest_of(source, decoding.decoder),
        reach=longest_of(decoding.embeddings),
        facts={"kind": "causal" if source is None else "seq2seq", **facts},
    )


def _stepping(
    decoder: LinformerDecoder,
    *,
    result: str,
    token: Callable[[int], Tensors],
    step: Callable[[Tensors, DecoderState], tuple[Tensor, DecoderState]],
    read: Callable[[int, int, DecoderState], DecoderState],
    contexts: Callable[[int, int], Tensors] | None,
    summarise: Callable[[Tensors], DecoderState] | None,
    longest: int | None,
    reach: int | None,
    facts: dict[str, Any],
) -> Export:
    """The step of a decoder, and the graph that makes its context if it has one.

    `longest` bounds the context, `reach` the text itself.
    """

    def first_state(batch: int, length: int) -> DecoderState:
        if contexts is None or summarise is None:
            return decoder.init_state(batch)
        return summarise(contexts(batch, length))

    with torch.no_grad(), unfolded_context(decoder):
        structure = first_state(1, 2)

    def stepped(inputs: Tensors) -> Tensors:
        past = {
            name.removeprefix(PAST): tensor
            for name, tensor in inputs.items()
            if name.startswith(PAST)
        }
        y, state = step(inputs, structure.with_tensors(past))
        after = {
            PRESENT + name: tensor
            for name, tensor in state.tensors().items()
            if not name.startswith(CONTEXT)
        }
        return {result: y, **after}

    def example(batch: int, length: int) -> Tensors:
        """A state in the middle of a text, past the window's end if `length` is."""
        state = read(batch, length, first_state(batch, min(length, longest or length)))
        return {**token(batch), **{PAST + n: t.clone() for n, t in state.tensors().items()}}

    sizes = {
        name: {"shape": list(tensor.shape[1:]), "type": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in structure.tensors().items()
        if not name.startswith(CONTEXT)
    }
    room = None if reach is None else max(1, reach - STEPS)  # for a few steps after what was read
    step_graph = Graph("step", stepped, example, room)
    facts = {**facts, "state": sizes, "result": result, "longest": longest, "reach": reach}
    if contexts is None or summarise is None:
        return Export((step_graph,), facts)
    make_state = summarise

    def summarised(inputs: Tensors) -> Tensors:
        tensors = make_state(inputs).tensors()
        return {name: tensor for name, tensor in tensors.items() if name.startswith(CONTEXT)}

    return Export((step_graph, Graph("encoder", summarised, contexts, longest)), facts)


def _outputs_of(model: Any) -> Callable[[Tensors], Tensors]:
    def function(inputs: Tensors) -> Tensors:
        return {name: value for name, value in model(**inputs).items() if value is not None}

    return function


def _inputs_of(model: Any) -> Callable[[int, int], Tensors]:
    """Random inputs of a model that reads all at once."""
    config = model.config
    several = type(model).__name__ == "LinformerForMultipleChoice"

    def example(batch: int, length: int) -> Tensors:
        shape = (batch, batch + 1, length) if several else (batch, length)
        mask = padding(batch, length).long()
        mask = mask[:, None].expand(shape) if several else mask
        if config.feature_size is not None:
            rows = torch.randn(*shape, config.feature_size)
            return {"inputs_embeds": rows, "attention_mask": mask}
        inputs = {"input_ids": torch.randint(config.vocab_size, shape), "attention_mask": mask}
        if config.type_vocab_size > 1:
            inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape)
        return inputs

    return example


def _context_width(decoder: LinformerDecoder) -> int:
    """The channels of a context, 0 without cross-attention."""
    for module in decoder.modules():
        if isinstance(module, LinformerAttention):
            return module.context_dim
    return 0
