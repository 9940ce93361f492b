"""Products by oneDNN give what PyTorch's own products give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.core.cpu import gemm
from linformer_kit.core.cpu.linear import apply_linear
from linformer_kit.core.numerics import batched_matmul

ROWS = [1, 7, 8, 9, 127, 128, 700, 2048, 2501]


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN for every product of 8 rows or more, whatever the processor is."""
    if gemm._OPERATOR is None or not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(gemm, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(gemm, "MIN_WEIGHT", 0)


@pytest.fixture
def calls(monkeypatch, onednn):
    """The rows of each product that oneDNN computes."""
    rows = []
    of_one, of_sum = gemm._onednn, gemm._onednn_sum
    monkeypatch.setattr(gemm, "_onednn", lambda x, *rest: rows.append(len(x)) or of_one(x, *rest))
    monkeypatch.setattr(
        gemm, "_onednn_sum", lambda total, x, w: rows.append(len(x)) or of_sum(total, x, w)
    )
    return rows


def double(*tensors):
    return [None if each is None else each.double() for each in tensors]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_linear_equals_double_precision(calls, rows, bias, transposed):
    x, offset = torch.randn(rows, 24), torch.randn(40) if bias else None
    weight = torch.randn(24, 40).t() if transposed else torch.randn(40, 24)
    expected = F.linear(*double(x, weight, offset)).float()
    out = torch.full((rows, 40), float("nan"))
    gemm.linear_into(x, weight, offset, out=out)
    assert_close(out, expected, atol=1e-4, rtol=1e-4)
    assert_close(gemm.linear(x, weight, offset), expected, atol=1e-4, rtol=1e-4)
    assert bool(calls) == (rows >= 8)
    assert set(calls) <= set(gemm.ROW_TILES)  # or oneDNN would keep a kernel for every length


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_activated_linear_equals_double_precision(calls, rows, activation):
    x, weight, bias = torch.randn(rows, 24), torch.randn(40, 24), torch.randn(40)
    plain = {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
    }[activation]
    result = gemm.activated_linear(
        x,
        weight,
        bias,
        activation,
        lambda hidden: hidden.copy_(plain(hidden)),
        buffer=torch.full((rows, 40), float("nan")),
    )
    assert_close(result, plain(F.linear(*double(x, weight, bias))).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", ROWS)
def test_gradients_equal_double_precision(calls, rows):
    x, grad, weight = torch.randn(rows, 24), torch.randn(rows, 40), torch.randn(40, 24)
    of_rows, of_weight = torch.randn(rows, 24), torch.randn(40, 24)
    expected_rows = (of_rows.double() + grad.double() @ weight.double()).float()
    expected_weight = (of_weight.double() + grad.double().t() @ x.double()).float()
    assert_close(gemm.matmul(grad, weight), grad @ weight, atol=1e-4, rtol=1e-4)
    gemm.add_matmul_(of_rows, grad, weight)
    assert_close(of_rows, expected_rows, atol=1e-4, rtol=1e-4)
    gemm.add_transposed_matmul_(of_weight, grad, x)
    assert_close(of_weight, expected_weight, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("length", ROWS)
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_compression_equals_double_precision(onednn, length, batch):
    matrix = torch.randn(40, 3000)[:, :length]  # as of an input shorter than the longest
    x, grad = torch.randn(batch, length, 24), torch.randn(batch, 40, 24)
    expected = torch.matmul(*double(matrix, x)).float()
    assert_close(gemm.matmul_samples(matrix, x), expected, atol=1e-3, rtol=1e-4)
    found = torch.randn(40, length)
    exact = (found.double() + (grad.double() @ x.double().mT).sum(0)).float()
    for sample, rows in zip(x, grad, strict=True):
        gemm.add_matmul_columns_(found, rows, sample)
    assert_close(found, exact, atol=1e-3, rtol=1e-4)


def test_expanded_rows_and_weights(onednn):
    x, weight = torch.randn(1, 24).expand(256, 24), torch.randn(1, 24).expand(40, 24)
    grad = torch.randn(1, 1).expand(256, 40)
    assert_close(gemm.linear(x, weight, None), F.linear(x, weight))
    assert_close(gemm.matmul(grad, weight), grad @ weight)
    found = torch.zeros(40, 24)
    gemm.add_transposed_matmul_(found, grad, x)
    assert_close(found, grad.t() @ x, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_what_is_not_a_number_stays_visible(onednn, activation):
    x, weight = torch.randn(256, 24), torch.randn(40, 24)
    x[3, 3] = float("nan")
    act = {"gelu": torch.ops.aten.gelu_, "relu": F.relu_}.get(
        activation, lambda x: torch.ops.aten.gelu_(x, approximate="tanh")
    )
    y = gemm.activated_linear(x, weight, None, activation, act, buffer=torch.empty(256, 40))
    assert y[3].isnan().all()
    assert y.isfinite().all(1).sum() == 255


def small_modules():
    torch.manual_seed(0)
    sizes = {"dim": 32, "depth": 2, "num_heads": 4, "ff_dim": 64}
    for options in (
        {"k": 16, "window": 8, "projection": "mean", "global_tokens": 2},
        {"k": 40},
        {"k": 4},
        {"projection": "full"},
        {"k": 16, "moving_average": True},
    ):
        yield LinformerEncoder(**sizes, max_length=300, **options)
    yield LinformerDecoder(**sizes, k=8, window=16)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("training", [True, False])
def test_models_equal_themselves_in_double_precision(calls, index, training):
    model = list(small_modules())[index].train(training)
    exact = list(small_modules())[index].train(training).double()
    x = torch.randn(2, 300, 32, requires_grad=True)
    twin = x.detach().double().requires_grad_()
    y, expected = model(x), exact(twin)
    assert_close(y, expected.float(), atol=1e-4, rtol=1e-4)
    y.square().mean().backward()
    expected.square().mean().backward()
    assert_close(x.grad, twin.grad.float(), atol=1e-5, rtol=1e-3)
    for (name, one), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert_close(
            one.grad,
            other.grad.float(),
            atol=1e-4,
            rtol=1e-3,
            msg=lambda text, name=name: name + text,
        )
    with torch.no_grad():
        assert_close(model.eval()(x), exact.eval()(twin).float(), atol=1e-4, rtol=1e-4)
    assert calls


def test_second_derivatives_of_a_linear_layer(onednn):
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(2, 128, 8, requires_grad=True)

    def penalty(y):
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        grad.square().sum().backward()
        found = x.grad.clone(), layer.weight.grad.clone()
        x.grad = layer.weight.grad = layer.bias.grad = None
        return found

    assert_close(penalty(apply_linear(layer, x)), penalty(layer(x)), atol=1e-3, rtol=1e-3)


def test_a_hook_of_a_linear_layer_is_called(onednn):
    layer = torch.nn.Linear(8, 8)
    layer.register_forward_hook(lambda *_: torch.zeros(()))
    assert apply_linear(layer, torch.randn(256, 8)).shape == ()


def test_operations_are_counted_as_without(onednn, monkeypatch):
    encoder, x = next(small_modules()).eval(), torch.randn(1, 300, 32)

    def count():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            encoder(x)
        return counter.get_total_flops()

    counted = count()
    monkeypatch.setattr(gemm, "onednn_is_faster", lambda: False)
    assert counted == count()


def test_the_switches_of_pytorch_are_obeyed(onednn):
    x, weight = torch.randn(256, 24), torch.randn(40, 24)
    assert gemm.use_onednn(x, weight)
    assert not gemm.use_onednn(x[:7], weight)
    assert not gemm.use_onednn(x.double(), weight.double())
    assert not gemm.use_onednn(x.bfloat16(), weight.bfloat16())
    assert not gemm.use_onednn(x, weight.to_sparse())
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert not gemm.use_onednn(x, weight)


@pytest.fixture
def batch_invariant():
    if not gemm.has_onednn():
        pytest.skip("this PyTorch has no oneDNN")
    with gemm.batch_invariant():
        yield


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("size", [(64, 100), (24, 8), (48, 300), (256, 256)])
def test_a_row_has_the_same_bits_whatever_the_other_rows_are(batch_invariant, activation, size):
    x, weight, bias = torch.randn(2501, size[0]), torch.randn(size[::-1]), torch.randn(size[1])

    def product(rows):
        if activation is None:
            return gemm.linear(rows, weight, bias)
        buffer = torch.empty(len(rows), size[1])
        act = torch.ops.aten.gelu_
        return gemm.activated_linear(rows, weight, bias, activation, act, buffer=buffer)

    whole = product(x)
    ends = ((0, 1), (9, 10), (4, 6), (5, 12), (0, 8), (3, 12), (100, 133), (7, 700), (1, 2050))
    for start, stop in (*ends, (2493, 2501)):
        assert torch.equal(product(x[start:stop]), whole[start:stop])


def test_batch_invariance_is_of_one_thread_and_ends(batch_invariant):
    x, weight = torch.randn(2, 24), torch.randn(40, 24)
    assert gemm.use_onednn(x, weight)
    with gemm.batch_invariant():
        pass
    assert gemm.use_onednn(x, weight)
    with ThreadPoolExecutor(1) as other:
        assert not other.submit(gemm.use_onednn, x, weight).result()


def test_a_bias_of_any_stride(onednn):
    x, weight = torch.randn(129, 24), torch.randn(40, 24)
    for bias in (torch.randn(80)[::2], torch.randn(1).expand(40), torch.randn(1)):
        assert_close(gemm.linear(x, weight, bias), F.linear(x, weight, bias), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "mean", "pool", "conv"])
def test_the_number_of_kernels_does_not_grow_with_the_lengths(calls, kind, monkeypatch):
    shapes = set()
    product, total = gemm._onednn, gemm._onednn_sum
    monkeypatch.setattr(
        gemm, "_onednn", lambda x, w, *more: shapes.add((x.shape, w.shape)) or product(x, w, *more)
    )
    monkeypatch.setattr(
        gemm, "_onednn_sum", lambda t, x, w: shapes.add((x.shape, w.shape, 1)) or total(t, x, w)
    )
    encoder = LinformerEncoder(
        dim=16, depth=1, num_heads=2, max_length=400, k=20, projection=kind, ff_dim=24
    )
    seen = []
    for lengths in (range(8, 200, 5), range(9, 200, 5)):
        for length in lengths:
            encoder(torch.randn(1, length, 16)).sum().backward()
            with torch.no_grad():
                encoder(torch.randn(1, length, 16))
        seen.append(len(shapes))
    assert seen[1] <= seen[0] + 3


def test_compression_obeys_autocast(onednn):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert batched_matmul(torch.randn(20, 128), torch.randn(1, 128, 8)).dtype == torch.bfloat16


def test_a_linear_layer_saves_what_its_gradients_need(onednn):
    layer, x = torch.nn.Linear(8, 8), torch.randn(128, 8, requires_grad=True)
    layer.requires_grad_(False)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = apply_linear(layer, x)
    assert [each.data_ptr() for each in saved] == [layer.weight.data_ptr()]
    with torch.no_grad():
        layer.bias += 1.0  # its value is not needed
    y.sum().backward()
    assert_close(x.grad, layer.weight.sum(0).expand(128, 8), atol=1e-4, rtol=1e-4)


def test_checkpoints_are_the_same_under_a_mode_and_outside(onednn):
    encoder = LinformerEncoder(dim=16, depth=1, num_heads=2, projection="full", ff_dim=24)
    x = torch.randn(1, 128, 16, requires_grad=True)
    with FlopCounterMode(display=False):
        y = checkpoint(encoder, x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("capability", "vendor", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("DEFAULT", "AuthenticAMD", False),
    ],
)
def test_which_processors(monkeypatch, capability, vendor, expected):
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        pytest.skip("this PyTorch has not both libraries")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    text = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: x\n"
    monkeypatch.setattr(gemm.Path, "read_text", lambda *_, **__: text)
    assert gemm.onednn_is_faster.__wrapped__() is expected


def test_a_machine_without_cpuinfo(monkeypatch):
    def fail(*_, **__):
        raise OSError

    monkeypatch.setattr(gemm.Path, "read_text", fail)
    monkeypatch.setattr(gemm.platform, "processor", lambda: "arm")
    assert gemm._may_be_intel()
    windows = "AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD"
    monkeypatch.setattr(gemm.platform, "processor", lambda: windows)
    assert not gemm._may_be_intel()


@pytest.mark.parametrize("options", [
    {"k": 64}, {"k": 16, "projection": "mean", "window": 8}, {"k": 16, "projection": "conv"},
    {"k": 64, "projection": "dynamic"}, {"projection": "full"},
])  # fmt: skip
@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("length", [8, 100, 400])
def test_a_sample_has_the_same_bits_alone_and_in_a_batch(batch_invariant, options, dim, length):
    torch.manual_seed(0)
    encoder = LinformerEncoder(dim=dim, depth=2, num_heads=4, max_length=512, **options).eval()
    x = torch.randn(8, length, dim)
    with torch.no_grad():
        together = encoder(x)
        assert all(
            torch.equal(encoder(one[None])[0], other)
            for one, other in zip(x, together, strict=True)
        )
