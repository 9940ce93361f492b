"""How long torch and onnxruntime take for the same model, taking turns.

`encoder` is one pass over an input with padding; `step` is one token of a decoder from its state. A
third contestant, for comparison, is an AOTInductor package of the same graph. It is not a target
of `linformer export`: such a package is machine code, and loading it runs what it holds.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core import checks
from ..core.decoder import LinformerDecoder
from ..core.encoder import LinformerEncoder
from ..measure.machine import describe, version_of
from ..measure.timing import Say, alternate, fixed_threads, say_nothing
from . import NEEDED, require
from .exporter import export_onnx, free_axes, quietly, traced_module
from .graphs import graphs_of
from .runtime import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from ..measure.records import Record
    from .graphs import Graph, Tensors

TORCH, ONNX, INT8, AOT = "torch", "onnxruntime", "onnxruntime int8", "AOTInductor"
STEPS = 10  # tokens in one timed run of a step


@dataclass(frozen=True, kw_only=True)
class OnnxTime:
    """What to measure: an encoder at each length, and a decoder's step."""

    lengths: tuple[int, ...] = (512, 2048, 8192)
    batch: int = 1
    dim: int = 256
    heads: int = 4
    k: int = 128
    depth: int = 2
    rounds: int = 10
    threads: int = 2
    seed: int = 0
    aot: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "dim", "heads", "k", "depth", "rounds", "threads"):
            checks.positive(name, getattr(self, name))
        for length in self.lengths:
            checks.positive("length", length)
            if length < self.k:
                raise ValueError(
                    f"k must be at most each length, for it shortens: got k={self.k}, {length}."
                )


def measure(settings: OnnxTime, *, say: Say = say_nothing) -> Iterator[Record]:
    """A record for each contestant and length, then for the step.

    `difference` is the largest between its result and torch's, at this length.
    """
    require(*NEEDED)
    torch.manual_seed(settings.seed)
    machine = describe(seed=settings.seed, threads=settings.threads) | {
        package: version_of(package) for package in NEEDED
    }
    sizes: dict[str, Any] = {
        "dim": settings.dim,
        "depth": settings.depth,
        "num_heads": settings.heads,
    }
    longest = max(settings.lengths)
    models: list[tuple[str, nn.Module, tuple[int, ...]]] = [
        (
            "encoder",
            LinformerEncoder(**sizes, k=settings.k, max_length=longest),
            settings.lengths,
        ),
        ("step", LinformerDecoder(**sizes), (512,)),
    ]
    with tempfile.TemporaryDirectory() as folder, fixed_threads(settings.threads):
        for what, model, lengths in models:
            say(f"{what}: exporting")
            path = Path(folder) / f"{what}.onnx"
            (file,) = export_onnx(model.eval(), path, int8=True)
            assert file.int8 is not None
            graph = graphs_of(model).graphs[0]
            repeat = STEPS if what == "step" else 1
            runs = {
                TORCH: _in_torch(graph),
                ONNX: _in_onnxruntime(path, settings.threads),
                INT8: _in_onnxruntime(file.int8.path, settings.threads),
            }
            if settings.aot:
                say(f"{what}: compiling")
                runs[AOT] = _compiled(model, graph, Path(folder) / f"{what}.pt2")
            for length in lengths:
                with torch.no_grad():
                    inputs = graph.example(settings.batch, length)
                expected = _first(runs[TORCH](inputs))
                timings = alternate(
                    {name: _repeated(run, inputs, repeat) for name, run in runs.items()},
                    rounds=settings.rounds,
                    say=say,
                )
                for name, timing in timings.items():
                    yield {
                        "bench": "onnx-time",
                        "what": what,
                        "contestant": name,
                        "length": length,
                        "batch": settings.batch,
                        **sizes,
                        "k": settings.k if what == "encoder" else 64,
                        "runs": repeat,
                        "seconds": [taken / repeat for taken in timing.seconds],
                        "best": None if timing.best is None else timing.best / repeat,
                        "difference": float((_first(runs[name](inputs)) - expected).abs().max()),
                        "note": timing.note,
                        "machine": machine,
                    }


def _repeated(
    run: Callable[[Tensors], object], inputs: Tensors, times: int
) -> Callable[[], object]:
    def repeated() -> None:
        for _ in range(times):
            run(inputs)

    return repeated


def _first(outputs: Sequence[Any]) -> Tensor:
    """The result itself, without the state."""
    return torch.as_tensor(outputs[0])


def _in_torch(graph: Graph) -> Callable[[Tensors], Sequence[Any]]:
    def run(inputs: Tensors) -> Sequence[Any]:
        with torch.inference_mode():
            return list(graph.function(inputs).values())

    return run


def _in_onnxruntime(path: Path, threads: int) -> Callable[[Tensors], Sequence[Any]]:
    running = session(path, threads=threads)
    return lambda inputs: running.run(None, {n: t.numpy() for n, t in inputs.items()})


def _compiled(model: nn.Module, graph: Graph, path: Path) -> Callable[[Tensors], Sequence[Any]]:
    """By torch.export and AOTInductor, for any batch and length, as the ONNX file."""
    inputs = graph.example(2, 24)
    axes = tuple(
        dict.fromkeys(free, torch.export.Dim.DYNAMIC) for free in free_axes(graph, inputs).values()
    )
    with torch.no_grad(), quietly():
        program = torch.export.export(
            traced_module(model, graph, list(inputs)),
            tuple(inputs.values()),
            dynamic_shapes={"tensors": axes},
        )
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    package: Any = torch._inductor.aoti_load_package(str(path))
    return lambda inputs: package(*inputs.values())
