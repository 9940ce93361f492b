"""Products by oneDNN give what PyTorch's own products give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.core.cpu import gemm

ROWS = [1, 127, 128, 129, 700, 2048, 2500]


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN for every product of 128 rows or more, whatever the processor is."""
    if gemm._OPERATOR is None or not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(gemm, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(gemm, "MIN_PRODUCTS", 0)


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
    assert bool(calls) == (rows >= 128)
    assert set(calls) <= set(gemm.PIECES)  # or oneDNN would keep a kernel for every length


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
    found = gemm.add_transposed_matmul(of_weight, grad, x)
    assert_close(found, expected_weight, atol=1e-3, rtol=1e-4)


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
    found = gemm.add_transposed_matmul(torch.zeros(40, 24), grad, x)
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
    from linformer_kit.core.cpu.linear import apply_linear

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
    from linformer_kit.core.cpu.linear import apply_linear

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
    weight = torch.randn(40, 24)
    assert gemm.use_onednn(256, weight)
    assert not gemm.use_onednn(100, weight)
    assert not gemm.use_onednn(256, weight.double())
    assert not gemm.use_onednn(256, weight.bfloat16())
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert not gemm.use_onednn(256, weight)


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
    assert gemm._is_made_by_intel()
    windows = "AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD"
    monkeypatch.setattr(gemm.platform, "processor", lambda: windows)
    assert not gemm._is_made_by_intel()
