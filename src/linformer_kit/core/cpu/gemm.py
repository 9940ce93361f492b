"""Products with weights on a CPU, by the faster of PyTorch's two libraries.

PyTorch multiplies float32 matrices with MKL. On processors that are not Intel's, MKL uses AVX2 even
where there is AVX-512. oneDNN, PyTorch's other library, uses AVX-512 on all of them and is then
about twice as fast. PyTorch has no public function that chooses oneDNN for float32, so this file,
and no other, calls the operator that `torch.compile` uses for linear layers. Everywhere else
`torch.addmm` runs, which is its fallback and its oracle.

oneDNN compiles and keeps a kernel for every shape (about 0.5 ms and 0.5 MB), so rows are cut into
pieces of a few sizes, and small products are left to MKL.

None of these functions is differentiable: they are called inside backward passes and without
gradients. `linear.py` has a linear layer with gradients.

Legend: R rows, C input channels, O output channels.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..activations import Activation

_OPERATOR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
PIECES = (2048, 1024, 512, 256, 128)  # rows of a product by oneDNN
MIN_PRODUCTS = 2**25  # multiplications below which a new kernel costs more than it saves
# Activations that oneDNN computes with the product: (name, algorithm). Its relu turns NaN to 0.
_FUSED: dict[str | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for rows x (R, C) and W (O, C)."""
    if not use_onednn(x.shape[0], weight):
        return F.linear(x, weight, bias)
    if x.shape[0] in PIECES:
        return _onednn(x, weight, bias)
    result = x.new_empty(x.shape[0], weight.shape[0])
    linear_into(x, weight, bias, out=result)
    return result


def linear_into(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """x W^T + b for rows x (R, C) and W (O, C), written to out (R, O)."""
    done = _onednn_into(x, weight, bias, out)
    if done and done == x.shape[0]:
        return
    if bias is None:
        torch.mm(x[done:], weight.t(), out=out[done:])
    else:
        torch.addmm(bias, x[done:], weight.t(), out=out[done:])


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

    `in_place` applies the activation to what oneDNN has not applied it to.
    """
    if activation not in _FUSED:
        linear_into(x, weight, bias, out=buffer)
        return in_place(buffer)
    if x.shape[0] in PIECES and use_onednn(x.shape[0], weight):
        return _onednn(x, weight, bias, activation)
    done = _onednn_into(x, weight, bias, buffer, activation)
    if done < x.shape[0]:
        linear_into(x[done:], weight, bias, out=buffer[done:])
        in_place(buffer[done:])
    return buffer


def matmul_into(rows: Tensor, weight: Tensor, *, out: Tensor) -> None:
    """The gradient of rows: rows (R, O) times weight (O, C), written to out (R, C)."""
    linear_into(rows, weight.t(), None, out=out)


def matmul(rows: Tensor, weight: Tensor) -> Tensor:
    """The same, returned."""
    by_onednn = use_onednn(rows.shape[0], weight)
    return linear(rows, weight.t(), None) if by_onednn else rows @ weight


def add_matmul_(total: Tensor, rows: Tensor, weight: Tensor) -> None:
    """Add rows (R, O) times weight (O, C) to total (R, C) in place."""
    done = 0
    if use_onednn(rows.shape[0], weight):
        for piece in _pieces(rows.shape[0]):
            total[piece] = _onednn_sum(total[piece], rows[piece], weight.t())
            done = piece.stop
    if done < rows.shape[0]:
        total[done:].addmm_(rows[done:], weight)


def add_transposed_matmul(total: Tensor, grad: Tensor, x: Tensor) -> Tensor:
    """total + grad^T x, for rows grad (R, O) and x (R, C): (O, C). `total` may be overwritten.

    This is the gradient of a weight, and with grad = E^T it is E x.
    """
    done = 0
    if use_onednn(grad.shape[0], total):
        for piece in _pieces(grad.shape[0]):
            total = _onednn_sum(total, grad[piece].t(), x[piece].t())
            done = piece.stop
    return total.addmm_(grad[done:].t(), x[done:]) if done < grad.shape[0] else total


def linear_samples_into(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """x W^T + b with a W (B, O, C) and b (B, 1, O) for each sample of x (B, R, C): (B, R, O)."""
    if len(x) and use_onednn(x.shape[1], weight[0]):
        for b, rows in enumerate(x):
            linear_into(rows, weight[b], None if bias is None else bias[b, 0], out=out[b])
    elif bias is None:
        torch.bmm(x, weight.mT, out=out)
    else:
        torch.baddbmm(bias, x, weight.mT, out=out)


def add_transposed_samples_(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add grad^T x of each sample, grad (B, R, O) and x (B, R, C), to total (B, O, C) in place."""
    if len(x) and use_onednn(x.shape[1], total[0]):
        for b, rows in enumerate(x):
            total[b] = add_transposed_matmul(total[b], grad[b], rows)
    else:
        total.baddbmm_(grad.mT, x)


def matmul_samples(matrix: Tensor, x: Tensor) -> Tensor:
    """E x of each sample, for E (O, S) and x (B, S, C): (B, O, C)."""
    new = x.new_empty(x.shape[0], matrix.shape[0], x.shape[2])
    if not len(x) or not use_onednn(x.shape[1], new[0]):
        return torch.bmm(matrix.expand(len(x), -1, -1), x)
    add_transposed_samples_(new.zero_(), matrix.t().expand(len(x), -1, -1), x)
    return new


def add_matmul_columns_(total: Tensor, weight: Tensor, rows: Tensor) -> None:
    """Add weight (O, C) times rows^T, rows (R, C), to total (O, R) in place: the gradient of E."""
    done = 0
    if use_onednn(rows.shape[0], weight):
        for piece in _pieces(rows.shape[0]):
            total[:, piece] += _onednn(weight, rows[piece], None)
            done = piece.stop
    if done < rows.shape[0]:
        total[:, done:].addmm_(weight, rows[done:].t())


def use_onednn(rows: int, weight: Tensor) -> bool:
    """Whether a product of some rows with a weight (O, C) is left to oneDNN.

    Not under a dispatch mode, such as one that counts operations or makes fake tensors: it would
    see an operator that it does not know.
    """
    return (
        not torch.compiler.is_compiling()
        and rows >= PIECES[-1]
        and rows * weight.numel() >= MIN_PRODUCTS
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and onednn_is_faster()
        and torch._C._get_mkldnn_enabled()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor has AVX-512 that MKL does not use. This does not measure anything, so
    that the same machine always computes the same bits.
    """
    return (
        _OPERATOR is not None
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not _is_made_by_intel()
    )


def _is_made_by_intel() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return "AuthenticAMD" not in platform.processor()
    vendor = next((line for line in lines if line.startswith("vendor_id")), "GenuineIntel")
    return "GenuineIntel" in vendor


def _pieces(rows: int) -> Iterator[slice]:
    """Slices of the sizes of PIECES; fewer rows than the smallest are left."""
    start = 0
    for size in PIECES:
        while rows - start >= size:
            yield slice(start, start + size)
            start += size


def _onednn_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    activation: Activation | None = None,
) -> int:
    """Write as many of the first rows of the product as oneDNN computes; how many these are."""
    done = 0
    if use_onednn(x.shape[0], weight):
        for piece in _pieces(x.shape[0]):
            out[piece] = _onednn(x[piece], weight, bias, activation)
            done = piece.stop
    return done


def _onednn(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None
) -> Tensor:
    name, algorithm = _FUSED[activation]
    result: Tensor = cast("Any", _OPERATOR)(x, _dense(weight), bias, name, [], algorithm)
    return result


def _onednn_sum(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """total (R, O) + x W^T."""
    result: Tensor = cast("Any", _OPERATOR).binary(
        x, total.contiguous(), _dense(weight), None, "add"
    )
    return result


def _dense(weight: Tensor) -> Tensor:
    """A weight whose rows or columns are contiguous; an expanded one is copied."""
    return weight if weight.t().is_contiguous() else weight.contiguous()
