"""Products with weights on a CPU, by the faster of PyTorch's two libraries.

PyTorch multiplies float32 matrices with MKL. On processors that are not Intel's, MKL uses AVX2 even
where there is AVX-512. oneDNN, PyTorch's other library, uses AVX-512 on all of them and is then
about twice as fast. PyTorch has no public function that chooses oneDNN for float32, so this file,
and no other, calls the operator that `torch.compile` uses for linear layers. Everywhere else
`torch.addmm` runs, which is its fallback and its oracle.

oneDNN compiles and keeps a kernel for every shape (about 0.5 ms and 0.5 MB), so rows are cut into
tiles of a few sizes, and small weights are left to MKL.

Within `batch_invariant()`, a row of `linear`, `linear_into` and `activated_linear` has the same
bits whatever the other rows are, on every processor: oneDNN computes every product there, and its
kernels of two rows or more round a row alike. MKL promises nothing of the kind: on Intel's
processors it rounds a row of a small product in another way than a row of a large one.

None of these functions is differentiable: they are called inside backward passes and without
gradients. `linear.py` has a linear layer with gradients.

Legend: B batch, R rows, C input channels, O output channels.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..activations import Activation

_OPERATOR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
ROW_TILES = (2048, 1024, 512, 256, 128, 64, 32, 16, 8)  # rows of one call
LEAST_OF_SUM = 128  # rows of one call that adds to a sum, which it reads and writes
OUTPUT_TILE = 2048  # output channels of one call that adds to a sum: its result is a temporary
MIN_WEIGHT = 2**16  # values of a weight below which MKL is as fast
# Activations that oneDNN computes with the product: (name, algorithm). Its relu turns NaN to 0.
_FUSED: dict[str | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
}
_thread = threading.local()


@contextlib.contextmanager
def batch_invariant() -> Iterator[None]:
    """Within, in this thread, a row has the same bits in any batch, where PyTorch has oneDNN.

    Products with small weights, or of a few rows, take longer than with MKL: about 0.05 ms each.
    """
    before = getattr(_thread, "batch_invariant", False)
    _thread.batch_invariant = True
    try:
        yield
    finally:
        _thread.batch_invariant = before


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for rows x (R, C) and W (O, C)."""
    if not use_onednn(x, weight):
        return F.linear(x, weight, bias)
    if x.shape[0] in ROW_TILES:
        return _onednn(x, weight, bias)
    result = x.new_empty(x.shape[0], weight.shape[0])
    linear_into(x, weight, bias, out=result)
    return result


def linear_into(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """x W^T + b for rows x (R, C) and W (O, C), written to out (R, O)."""
    if use_onednn(x, weight):
        _onednn_into(x, weight, bias, out)
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def activated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation,
    in_place: Callable[[Tensor], Tensor],
    *,
    buffer: Tensor,
) -> Tensor:
    """act(x W^T + b) for rows x (R, C). `buffer` (R, O) may hold the result.

    `in_place` is the activation, for where oneDNN does not compute it.
    """
    if activation not in _FUSED or not use_onednn(x, weight):
        linear_into(x, weight, bias, out=buffer)
        return in_place(buffer)
    if x.shape[0] in ROW_TILES:
        return _onednn(x, weight, bias, activation)
    _onednn_into(x, weight, bias, buffer, activation)
    return buffer


def matmul(rows: Tensor, weight: Tensor) -> Tensor:
    """rows (R, O) times weight (O, C): the gradient of the input of a linear layer."""
    return linear(rows, weight.t(), None) if use_onednn(rows, weight) else rows @ weight


def matmul_into(rows: Tensor, weight: Tensor, *, out: Tensor) -> None:
    """rows (R, O) times weight (O, C), written to out (R, C)."""
    linear_into(rows, weight.t(), None, out=out)


def add_matmul_(total: Tensor, rows: Tensor, weight: Tensor) -> None:
    """Add rows (R, O) times weight (O, C) to total (R, C)."""
    done = 0
    if use_onednn(rows, weight):
        for tile in _tiles(rows.shape[0], LEAST_OF_SUM):
            total[tile] = _onednn_sum(total[tile], rows[tile], weight.t())
            done = tile.stop
    if done < rows.shape[0]:
        total[done:].addmm_(rows[done:], weight)


def add_transposed_matmul_(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add grad^T x, for rows grad (R, O) and x (R, C), to total (O, C).

    This is the gradient of a weight, and with grad = E^T it is E x.
    """
    done = 0
    if use_onednn(grad, total):
        columns = [slice(i, i + OUTPUT_TILE) for i in range(0, total.shape[0], OUTPUT_TILE)]
        for tile in _tiles(grad.shape[0], LEAST_OF_SUM):
            for some in columns:
                total[some] = _onednn_sum(total[some], grad[tile, some].t(), x[tile].t())
            done = tile.stop
    if done < grad.shape[0]:
        total.addmm_(grad[done:].t(), x[done:])


def add_matmul_columns_(total: Tensor, weight: Tensor, rows: Tensor) -> None:
    """Add weight (O, C) times rows^T, rows (R, C), to total (O, R): the gradient of E."""
    done = 0
    if use_onednn(rows, weight):
        for tile in _tiles(rows.shape[0], LEAST_OF_SUM):
            total[:, tile] += _onednn(weight, rows[tile], None)
            done = tile.stop
    if done < rows.shape[0]:
        total[:, done:].addmm_(weight, rows[done:].t())


def linear_samples_into(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """x W^T + b with a W (B, O, C) and b (B, 1, O) for each sample of x (B, R, C): (B, R, O)."""
    if len(x) and use_onednn(x[0], weight[0]):
        for b, rows in enumerate(x):
            _onednn_into(rows, weight[b], None if bias is None else bias[b, 0], out[b])
    elif bias is None:
        torch.bmm(x, weight.mT, out=out)
    else:
        torch.baddbmm(bias, x, weight.mT, out=out)


def add_transposed_samples_(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add grad^T x of each sample, grad (B, R, O) and x (B, R, C), to total (B, O, C)."""
    if len(x) and use_onednn(x[0], total[0]):
        for b, rows in enumerate(x):
            add_transposed_matmul_(total[b], grad[b], rows)
    else:
        total.baddbmm_(grad.mT, x)


def matmul_samples(matrix: Tensor, x: Tensor) -> Tensor:
    """E x of each sample, for E (O, S) and x (B, S, C): (B, O, C)."""
    result = x.new_empty(x.shape[0], matrix.shape[0], x.shape[2])
    if not len(x) or not use_onednn(x[0], result[0]):
        return torch.bmm(matrix.expand(len(x), -1, -1), x)
    add_transposed_samples_(result.zero_(), matrix.t().expand(len(x), -1, -1), x)
    return result


def use_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether the product of rows x (R, C) and a weight (O, C) is computed by oneDNN.

    Not under a dispatch mode, such as one that counts operations or makes fake tensors: it would
    see an operator that it does not know.
    """
    return suits_onednn(x, weight) and torch._C._len_torch_dispatch_stack() == 0


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """As `use_onednn`, without regard to dispatch modes."""
    return (
        not torch.compiler.is_compiling()
        and (_suits_speed(x, weight) or _suits_batches(x))
        and torch._C._get_mkldnn_enabled()
        and torch._C._get_tracing_state() is None
        and all(
            type(each) in (Tensor, nn.Parameter)
            and each.dtype == torch.float32
            and each.device.type == "cpu"
            and each.layout == torch.strided
            for each in (x, weight)
        )
    )


def _suits_speed(x: Tensor, weight: Tensor) -> bool:
    return x.shape[0] >= ROW_TILES[-1] and weight.numel() >= MIN_WEIGHT and onednn_is_faster()


def _suits_batches(x: Tensor) -> bool:
    return getattr(_thread, "batch_invariant", False) and x.shape[0] > 0 and has_onednn()


def has_onednn() -> bool:
    return _OPERATOR is not None and torch.backends.mkldnn.is_available()


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor has AVX-512 that MKL does not use. This does not measure anything, so
    that the same machine always computes the same bits.
    """
    return (
        has_onednn()
        and torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not _may_be_intel()
    )


def _may_be_intel() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return "AuthenticAMD" not in platform.processor()
    vendor = next((line for line in lines if line.startswith("vendor_id")), "GenuineIntel")
    return "GenuineIntel" in vendor


def _tiles(rows: int, least: int = ROW_TILES[-1]) -> Iterator[slice]:
    """Slices of the sizes of ROW_TILES from `least` on; fewer rows than that may remain."""
    start = 0
    for size in ROW_TILES:
        while size >= least and rows - start >= size:
            yield slice(start, start + size)
            start += size


def _onednn_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: Activation | None = None,
) -> None:
    rows, least, done = x.shape[0], ROW_TILES[-1], 0
    if rows < least:  # one kernel, of two rows or more
        out.copy_(_onednn(F.pad(x, (0, 0, 0, least - rows)), weight, bias, activation)[:rows])
        return
    for tile in _tiles(rows):
        out[tile] = _onednn(x[tile], weight, bias, activation)
        done = tile.stop
    if done < rows:  # a tile that overlaps the one before it: its rows have the same bits
        out[done:] = _onednn(x[rows - least :], weight, bias, activation)[done - rows :]


def _onednn(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None
) -> Tensor:
    name, algorithm = _FUSED[activation]
    if bias is not None:
        bias = bias.expand(weight.shape[0]).contiguous()  # the operator ignores its stride
    result: Tensor = cast("Any", _OPERATOR)(x, _dense(weight), bias, name, [], algorithm)
    return result


def _onednn_sum(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """total (R, O) + x W^T, a new tensor."""
    operator: Any = cast("Any", _OPERATOR).binary
    result: Tensor = operator(x, total.contiguous(), _dense(weight), None, "add")
    return result


def _dense(weight: Tensor) -> Tensor:
    """A weight whose rows or columns are contiguous; an expanded one is copied."""
    return weight if weight.t().is_contiguous() else weight.contiguous()
