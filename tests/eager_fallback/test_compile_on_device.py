"""Compiled graphs on tensors of the device: eager's values, no copies, the tensors' own memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from neuron_compiler import interop
from neuron_compiler.ledger import LEDGER


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="neuron", fullgraph=True, **options)


def test_forward_and_backward_with_dropout_are_eagers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.4), nn.LayerNorm(16), nn.Linear(16, 3)).to("neuron")
    other = copy.deepcopy(model)
    x = torch.randn(8, 6, device="neuron")
    found = []
    for net, run in ((model, model), (other, compiled(other))):
        torch.manual_seed(7)
        given = x.clone().requires_grad_()
        result = run(given)
        result.square().sum().backward()
        found.append([result.detach(), given.grad, *(p.grad for p in net.parameters())])
    for here, there in zip(*found, strict=True):
        assert there.device == torch.device("neuron:0")
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)


def test_an_argument_that_is_written_keeps_its_memory() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1:3] = x
        cache.mul_(2)
        return cache.sum() + x.sum()

    cache, x = torch.ones(4, 2, device="neuron"), torch.full((2, 2), 3.0, device="neuron")
    view, pointer, version = cache[1], cache.data_ptr(), cache._version
    run = compiled(step)
    assert run(cache, x).item() == 4 * 6 + 4 * 2 + 12
    assert cache.data_ptr() == pointer
    assert cache.tolist() == [[2, 2], [6, 6], [6, 6], [2, 2]]
    assert view.tolist() == [6, 6]
    assert cache._version > version


def test_buffers_of_batch_norm_are_updated_in_place() -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm1d(4).to("neuron")
    other = copy.deepcopy(model)
    pointers = [b.data_ptr() for b in other.buffers()]
    x = torch.randn(10, 4, device="neuron")
    run = compiled(other)
    for _ in range(3):
        torch.testing.assert_close(run(x), model(x))
    for here, there in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(there, here)
    assert [b.data_ptr() for b in other.buffers()] == pointers


def test_views_of_arguments_that_are_returned_share_memory() -> None:
    x = torch.arange(6.0, device="neuron")
    view, made = compiled(lambda x: (x.view(2, 3)[1], x + 1))(x)
    assert view.data_ptr() == x.data_ptr() + 12
    x.mul_(10)
    assert view.tolist() == [30, 40, 50]
    assert made.tolist() == [1, 2, 3, 4, 5, 6]
    assert compiled(lambda x: x)(x) is x


def test_a_chain_of_calls_copies_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[int, int]] = []
    inner = interop.to_array

    def to_array(tensor: torch.Tensor) -> Any:
        array = inner(tensor)
        handed.append((tensor.data_ptr(), array.unsafe_buffer_pointer()))
        return array

    run = compiled(lambda x, w: torch.tanh(x @ w) + x)
    x = torch.ones(16, 16, device="neuron")
    w = torch.full((16, 16), 0.01, device="neuron")
    expected = x.clone()
    run(x, w)
    monkeypatch.setattr(interop, "to_array", to_array)
    for _ in range(50):
        given = x.data_ptr()
        assert torch.ops.neuron_compiler.as_cpu(x).data_ptr() == given
        x = run(x, w)
        expected = torch.tanh(expected @ w) + expected
        assert {given, w.data_ptr()} == {pointer for pointer, _ in handed[-2:]}
    assert len(handed) == 100
    assert [pair for pair in handed if pair[0] != pair[1]] == []
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)


def test_a_thousand_calls_leave_memory_where_it_was() -> None:
    run = compiled(lambda x: x * 2 + 1)
    x = torch.ones(64, device="neuron")
    run(x)
    before = torch.neuron.memory_allocated()
    for _ in range(1000):
        run(x)
    assert torch.neuron.memory_allocated() == before


def test_training_with_adamw() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1)).to("neuron")
    other = copy.deepcopy(model)
    x, y = torch.randn(16, 4, device="neuron"), torch.randn(16, 1, device="neuron")
    losses = []
    for net, run in ((model, model), (other, compiled(other))):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        pointers = [p.data_ptr() for p in net.parameters()]
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(run(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
        assert [p.data_ptr() for p in net.parameters()] == pointers
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_a_step_of_the_optimizer_compiled() -> None:
    found = []
    for wrap in (lambda step: step, torch.compile):
        weight = nn.Parameter(torch.arange(1.0, 5, device="neuron"))
        pointer = weight.data_ptr()
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        step = wrap(optimizer.step)
        for _ in range(3):
            weight.grad = weight.detach() * 2
            step()
        assert weight.data_ptr() == pointer
        found.append(weight.detach())
    torch.testing.assert_close(found[1], found[0])


def test_autocast() -> None:
    x, w = torch.randn(4, 4, device="neuron"), torch.randn(4, 4, device="neuron")

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("neuron", dtype=torch.bfloat16):
            return (x @ w).relu()

    made = compiled(step)(x, w)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made, step(x, w), rtol=2e-2, atol=2e-2)


def test_sizes_that_change() -> None:
    run = compiled(lambda x: x.cumsum(0) * x.shape[0], dynamic=True)
    for size in (3, 5, 8):
        x = torch.arange(float(size), device="neuron")
        assert torch.equal(run(x), x.cumsum(0) * size)


def test_scalars_of_the_cpu_and_constants() -> None:
    scale = torch.tensor(2.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * scale + torch.tensor([1.0, 2.0], device=x.device) + torch.ones(2).to(x.device)

    assert compiled(step)(torch.ones(2, device="neuron")).tolist() == [4, 5]


def test_devices_are_not_mixed() -> None:
    with pytest.raises(Exception, match=r"device"):
        compiled(lambda x: x + torch.ones(3))(torch.ones(3, device="neuron"))


def test_results_that_go_to_the_cpu() -> None:
    made = compiled(lambda x: (x + 1).cpu())(torch.ones(2, device="neuron"))
    assert (made.device.type, made.tolist()) == ("cpu", [2, 2])


def test_calls_of_the_device_inside_a_graph() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.neuron.synchronize()
        return x + torch.neuron.current_device() + torch.ones(2, device="neuron")

    assert compiled(step)(torch.ones(2, device="neuron")).tolist() == [2, 2]


def test_operators_that_run_eagerly_inside_a_graph() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x * 2) + x

    x = torch.eye(3, device="neuron")
    torch.testing.assert_close(compiled(step)(x), step(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_pytorchs_own_backends(backend: str) -> None:
    found = []
    for compile_ in (lambda model: model, lambda model: torch.compile(model, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2)).to("neuron")
        loss = compile_(model)(torch.randn(6, 4, device="neuron")).square().mean()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()])
    assert all(map(torch.equal, *found))


def test_a_custom_backend_of_aot_autograd() -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    devices = []

    def take(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        devices.extend(i.device.type for i in inputs)
        return make_boxed_func(module.forward)

    x = torch.ones(3, device="neuron", requires_grad=True)
    torch.compile(lambda x: (x * x).sum(), backend=aot_autograd(fw_compiler=take))(x).backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert set(devices) == {"neuron"}


def test_export() -> None:
    model = nn.Linear(3, 2).to("neuron")
    x = torch.ones(4, 3, device="neuron")
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))


def test_four_threads_at_once() -> None:
    run = compiled(lambda x, s: (x * s).sum(0))
    x = torch.ones(8, 4, device="neuron")
    run(x, torch.tensor(1.0, device="neuron"))
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        scale = torch.tensor(float(number), device="neuron")
        for _ in range(20):
            results[number] = run(x, scale).tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [8.0 * number] * 4 for number in range(4)}


def test_metrics_of_graphs() -> None:
    torch.neuron.reset_dynamo_metrics()
    before = LEDGER.total("compile")
    compiled(lambda x: x.sin() + 1)(torch.ones(2, device="neuron"))
    (record,) = torch.neuron.get_dynamo_metrics()
    assert LEDGER.total("compile") == before + 1
    assert record["graph_node_count"] == 2
    assert record["graph_name"].startswith(record["model_name"])
    assert min(record[name] for name in ("fx_passes_us", "lower_us", "compile_us")) > 0
    torch.neuron.reset_dynamo_metrics()
    assert torch.neuron.get_dynamo_metrics() == []
