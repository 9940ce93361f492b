"""How long torch and onnxruntime take for the same model, taking turns.

    python -m benchmarks.onnx_time --lengths 512,2048,8192

`encoder` is one pass over an input with padding; `step` is one token of a decoder from its state.
With --aot an AOTInductor package of the same graph takes part. It is not a target of `linformer
export`: such a package is machine code, and loading it runs that code.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from linformer_kit.cli.bench import main
from linformer_kit.core.decoder import LinformerDecoder
from linformer_kit.core.encoder import LinformerEncoder
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.settings import Settings, check_heads, check_memory
from linformer_kit.evidence.bench.views import Results, Table, short_note
from linformer_kit.export import NEEDED, require
from linformer_kit.measure import quantities
from linformer_kit.measure.cells import Cell
from linformer_kit.measure.machine import version_of
from linformer_kit.measure.timing import Say, Timing, alternate, fixed_threads, times_faster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from linformer_kit.export.graphs import Graph, Tensors
    from linformer_kit.measure.records import Record

TORCH, ONNX, INT8, AOT = "torch", "onnxruntime", "onnxruntime int8", "AOTInductor"
STEPS = 10  # tokens in one timed run of a step
STEP_LENGTH, STEP_K = 512, 64


@dataclass(frozen=True, kw_only=True)
class OnnxSettings(Settings):
    """An encoder at each length, and a decoder's step."""

    lengths: tuple[int, ...] = options.lengths((512, 2048, 8192))
    batch: int = options.batch(1)
    dim: int = options.dim(256)
    heads: int = options.heads(4)
    k: int = options.k(128)
    depth: int = options.depth(2)
    aot: bool = options.option(False, "Also compile with AOTInductor (needs a C++ compiler).")
    rounds: int = options.rounds(10)
    threads: int = options.threads()

    def check(self) -> None:
        check_heads(self.dim, self.heads)
        for length in self.lengths:
            if length < self.k:
                raise ValueError(
                    f"k must be at most each length, for it shortens: got k={self.k}, {length}."
                )
        longest = max(self.lengths)
        check_memory(
            values=2 * self.batch * longest * self.dim
            + self.k * longest
            + 12 * self.depth * self.dim**2,
            length=longest,
            k=self.k,
            dim=self.dim,
            batch=self.batch,
            depth=self.depth,
        )


def _entry(record: Record) -> str:
    if record.get("best") is None:
        return short_note(record.get("note") or "-")
    time = quantities.seconds(record["best"])
    times = record.get("times_faster")
    return time if record["model"] == TORCH else f"{time} {quantities.ratio(times)}"


BENCHMARK = Benchmark(
    help="Time an encoder and a decoder's step in torch and in onnxruntime, in turn.",
    settings=OnnxSettings,
    module="benchmarks.onnx_time",
    results=Results(
        bench="onnx-time",
        keys=("what", "length", "model"),
        sizes=("batch", "dim", "depth", "num_heads"),
        caption="{depth} layers, dim {dim}, {num_heads} heads, batch {batch}; x: times faster than "
        "torch",
        tables=(
            Table(
                title="Inference time",
                rows=(("what", "what"), ("length", "length")),
                across="model",
                entry=_entry,
            ),
        ),
    ),
)


def machine(settings: OnnxSettings) -> Record:
    del settings
    require(*NEEDED)
    return {package: version_of(package) for package in NEEDED}


def cells(settings: OnnxSettings) -> list[Cell]:
    """One for the encoder, one for the step: a model is exported once."""
    return [
        _cell(settings, "encoder", settings.lengths, settings.k),
        _cell(settings, "step", (STEP_LENGTH,), STEP_K),
    ]


def _cell(settings: OnnxSettings, what: str, lengths: tuple[int, ...], k: int) -> Cell:
    sizes = {"dim": settings.dim, "depth": settings.depth, "num_heads": settings.heads}
    names = [TORCH, ONNX, INT8, *([AOT] if settings.aot else [])]
    repeat = STEPS if what == "step" else 1

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        torch.manual_seed(settings.seed)
        model: nn.Module = (
            LinformerEncoder(**sizes, k=k, max_length=max(lengths))
            if what == "encoder"
            else LinformerDecoder(**sizes, k=k)
        )
        with tempfile.TemporaryDirectory() as folder, fixed_threads(settings.threads):
            graph, runs = _runs(settings, model.eval(), Path(folder), say)
            return [one for n in lengths for one in _results(settings, graph, runs, n, repeat, say)]

    return Cell(
        name=what,
        settings={"what": what, "batch": settings.batch, **sizes, "k": k, "runs": repeat}
        | {"rounds": settings.rounds, "models": names},
        variants=[{"length": length, "model": name} for length in lengths for name in names],
        work=sum(lengths),
        run=run,
    )


def _runs(
    settings: OnnxSettings, model: nn.Module, folder: Path, say: Say
) -> tuple[Graph, dict[str, Callable[[Tensors], Sequence[Any]]]]:
    """The model as a function in each runtime."""
    from linformer_kit.export.exporter import export_onnx
    from linformer_kit.export.graphs import graphs_of

    say("exporting")
    path = folder / "model.onnx"
    (file,) = export_onnx(model, path, int8=True)
    assert file.int8 is not None
    graph = graphs_of(model).graphs[0]
    runs = {
        TORCH: _in_torch(graph),
        ONNX: _in_onnxruntime(path, settings.threads),
        INT8: _in_onnxruntime(file.int8.path, settings.threads),
    }
    if settings.aot:
        say("compiling")
        runs[AOT] = _compiled(model, graph, folder / "model.pt2")
    return graph, runs


def _results(
    settings: OnnxSettings, graph: Graph, runs: dict[str, Any], length: int, repeat: int, say: Say
) -> list[Record]:
    """`difference` is the largest between the result and torch's, at this length."""
    with torch.no_grad():
        inputs = graph.example(settings.batch, length)
    expected = _first(runs[TORCH](inputs))
    timings = alternate(
        {name: _repeated(run, inputs, repeat) for name, run in runs.items()},
        rounds=settings.rounds,
        say=say,
    )
    return [
        {
            **Timing(tuple(taken / repeat for taken in timing.seconds), timing.note).as_record(),
            "times_faster": times_faster(timing, timings[TORCH]),
            "difference": float((_first(runs[name](inputs)) - expected).abs().max()),
        }
        for name, timing in timings.items()
    ]


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
    from linformer_kit.export.runtime import session

    running = session(path, threads=threads)
    return lambda inputs: running.run(None, {n: t.numpy() for n, t in inputs.items()})


def _compiled(model: nn.Module, graph: Graph, path: Path) -> Callable[[Tensors], Sequence[Any]]:
    """By torch.export and AOTInductor, for any batch and length, as the ONNX file."""
    from linformer_kit.export.exporter import free_axes, quietly, traced_module

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


if __name__ == "__main__":
    main(BENCHMARK)
