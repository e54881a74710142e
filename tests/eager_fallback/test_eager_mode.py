"""Operators that wait and run as one program, or that are compiled one by one: the values of those that run at once."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import in_fresh_process
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from neuron_compiler.capture import functions
from neuron_compiler.eager_fallback import eager_mode as modes
from neuron_compiler.errors import OptionsError
from neuron_compiler.ledger import LEDGER

DEVICE = "neuron"


def waits() -> bool:
    """Whether something is queued."""
    return not modes.loader.loaded().queue_is_empty()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert torch.neuron.get_eager_mode() == "each"
    assert not waits()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of operators of the programs that are compiled from here."""
    found: list[int] = []
    compile_function = functions.compile_function

    def counted(program: Any, *args: Any) -> Any:
        found.append(len(program.calls))
        return compile_function(program, *args)

    monkeypatch.setattr(functions, "compile_function", counted)
    return found


def fused(function: Callable[..., Any], *args: torch.Tensor, times: int = 2) -> Any:
    """What the function gives in mode ``fused``, at the time that it is compiled."""
    with torch.neuron.eager_mode("fused"):
        for _ in range(times):
            given = [arg.to(DEVICE, copy=True) for arg in args]
            found = function(*given)
            torch.neuron.synchronize()
    return found


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(x * 2.5 + y) - y.t(), -1)


# Values ------------------------------------------------------------


def test_nothing_runs_until_a_value_is_needed(compiled: list[int]) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    with torch.neuron.eager_mode("fused"):
        for time in range(3):
            found = chain(x.to(DEVICE), y.to(DEVICE))
            assert waits()
            assert found.shape == (4, 4)
            assert found.device.type == DEVICE
            torch.testing.assert_close(found.cpu(), chain(x, y))
            assert not waits()
            assert len(compiled) == min(time, 1)
    assert compiled == [5]


@pytest.mark.parametrize(
    "needed",
    [
        lambda t: t.sum().item(),
        lambda t: bool((t > 0).any()),
        str,
        lambda t: t.tolist(),
        lambda t: t.cpu().numpy().copy(),
        lambda t: torch.neuron.synchronize(),
        lambda t: torch.accelerator.synchronize(),
        lambda t: torch.neuron.current_stream().synchronize(),
        lambda t: torch.neuron.record_event(),
        lambda t: torch.save(t, io.BytesIO()),
        lambda t: torch.nonzero(t),
        lambda t: torch.equal(t, t),
        lambda t: t.untyped_storage().resize_(256),
        lambda t: torch.mm(t, t),
    ],
)
def test_what_needs_a_value_has_it(needed: Callable[[torch.Tensor], object]) -> None:
    x = torch.randn(4, 4)
    with torch.neuron.eager_mode("fused"):
        found = x.to(DEVICE) * 3 + 1
        assert waits()
        needed(found)
        assert not waits()
        torch.testing.assert_close(found.cpu()[:4], x * 3 + 1)


def test_values_of_temporaries_are_not_kept() -> None:
    with torch.neuron.eager_mode("fused"):
        x = torch.ones(8, device=DEVICE)
        kept = (x + 1).exp().log() * 2
        torch.neuron.synchronize()
    program = modes._last
    assert len(program.calls) >= 4
    assert len(program.live) <= 2  # `kept`, and `x`, which the program fills
    assert kept.tolist() == pytest.approx([4.0] * 8)


def test_results_have_their_memory_at_once() -> None:
    before = torch.neuron.memory_allocated()
    with torch.neuron.eager_mode("fused"):
        x = torch.ones(1000, device=DEVICE)
        found = x * 2
        pointer = found.data_ptr()
        assert torch.neuron.memory_allocated() - before == 8000
        torch.neuron.synchronize()
        assert found.data_ptr() == pointer != 0
        assert found.sum().item() == 2000
    del x, found
    assert torch.neuron.memory_allocated() == before


def test_views_and_writes_through_them() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x + y
        rows, columns = a[1:3], a.t()
        rows.mul_(2)
        columns[0].add_(columns[1])
        z = x.new_zeros(6)
        z[::2] += rows[0, :3]
        x.view(-1)[5:9].fill_(7)
        flat = a.view(2, 8).clone()
        a.copy_(y.t())
        return x, a, rows, columns, z, flat, x.expand(3, 4, 4).sum(0)

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    given = x.clone()
    for found, wanted in zip(fused(run, x, y), run(given, y), strict=True):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-6)


def test_kernels_that_do_not_wait_keep_to_the_order() -> None:
    with torch.neuron.eager_mode("fused"):
        for _ in range(2):
            x = torch.arange(6.0, device=DEVICE)
            before = x + 1  # reads x
            x.sort()
            assert waits()  # a kernel that only reads, too
            torch._foreach_mul_([x], 10.0)  # writes what is still to be read
            after = x + 1
            assert before.tolist() == [1, 2, 3, 4, 5, 6]
            assert after.tolist() == [1, 11, 21, 31, 41, 51]


def test_random_numbers_are_those_of_the_cpu() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return F.dropout(torch.relu(x) * 2, 0.5) + torch.rand(8, 8, device=x.device)

    x = torch.randn(8, 8)
    torch.testing.assert_close(fused(run, x).cpu(), run(x))


@pytest.mark.parametrize("number", [0.1, 1e-30, 3, True, float("inf"), float("nan"), -0.0, 2**40, 1e300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64])
def test_numbers_of_the_program(number: float, dtype: torch.dtype) -> None:
    x = torch.tensor([3, -2, 0, 5], dtype=dtype)
    for time in (1, 2):
        found = fused(lambda x: (x * number, x + number, number * x), x, times=time)
        for got, wanted in zip(found, (x * number, x + number, number * x), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got.cpu(), wanted, equal_nan=True)


def test_training_follows_each() -> None:
    def losses(mode: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4)).to(
            DEVICE
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        found = []
        with torch.neuron.eager_mode(mode):
            for _ in range(4):
                x, y = torch.randn(5, 8).to(DEVICE), torch.randint(4, (5,)).to(DEVICE)
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    assert losses("fused") == pytest.approx(losses("each"), rel=1e-5)


def test_autocast_and_grad_mode_of_the_moment_do_not_matter() -> None:
    x = torch.randn(8, 8)
    with torch.neuron.eager_mode("fused"):
        for _ in range(2):
            a = x.to(DEVICE)
            found = a / 3 + a
            with torch.autocast(DEVICE, dtype=torch.bfloat16), torch.inference_mode():
                torch.neuron.synchronize()
            assert found.dtype == torch.float32
            assert not found.is_inference()
            torch.testing.assert_close(found.cpu(), x / 3 + x)


def test_functions_of_functions() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.grad(lambda row: (row.sin() * row).sum()))(x)

    x = torch.randn(3, 5)
    torch.testing.assert_close(fused(run, x).cpu(), run(x))


def test_compiled_graphs_read_what_waited() -> None:
    graph = torch.compile(lambda x: x.cos() + 1, backend="neuron")
    x = torch.randn(6)
    found = fused(lambda x: graph(x * 2) * 3, x)
    torch.testing.assert_close(found.cpu(), ((x * 2).cos() + 1) * 3)


def test_more_than_the_limit(compiled: list[int]) -> None:
    x = torch.ones(3, device=DEVICE)
    with torch.neuron.eager_mode("fused", limit=4):
        for _ in range(2):
            found = x
            for _ in range(9):
                found = found + 1
            assert found.tolist() == [10, 10, 10]
    assert 4 in compiled
    assert max(compiled) == 4


# Programs at random ------------------------------------------------------------

SHAPE = (4, 4)


def apply(pool: list[torch.Tensor], steps: list[tuple[str, int, int]]) -> list[torch.Tensor]:
    for kind, first, second in steps:
        a, b = pool[first % len(pool)], pool[second % len(pool)]
        if kind == "add":
            pool.append(a + b)
        elif kind == "where":
            pool.append(torch.where(a > 0, a, b.neg()))
        elif kind == "norm":
            pool.append(F.layer_norm(a, (4,)) + b)
        elif kind == "row":
            a[second % 4].mul_(0.5)
        elif kind == "column":
            a[:, first % 4] += b[second % 4].clone()
        elif kind == "copy":
            a.copy_(b.clone())
        elif kind == "transposed":
            pool.append(a.t())
        elif kind == "flip":
            pool.append(b.t().contiguous())
        elif kind == "cat":
            pool.append(torch.cat([a[:2], b[2:]]))
        elif kind == "fill":
            a[first % 4 :].fill_(second)
        elif kind == "drop" and len(pool) > 1:
            pool.pop(first % len(pool))
        elif kind == "kernel":
            pool.append(a.sort(dim=second % 2).values)
        elif kind == "foreach":
            torch._foreach_add_([a], 1.0)
    return pool


KINDS = [
    "add",
    "where",
    "norm",
    "row",
    "column",
    "copy",
    "transposed",
    "flip",
    "cat",
    "fill",
    "drop",
    "kernel",
    "foreach",
]


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 7)), max_size=14))
@settings(max_examples=40, deadline=None)
def test_any_program_gives_the_values_of_the_cpu(steps: list[tuple[str, int, int]]) -> None:
    def start(device: str) -> list[torch.Tensor]:
        return [(torch.arange(16.0).view(SHAPE) - k).to(device) for k in (3, 8)]

    wanted = apply(start("cpu"), steps)
    with torch.neuron.eager_mode("fused"):
        found = apply(start(DEVICE), steps)
    for got, want in zip(found, wanted, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got.cpu(), want)


# Errors ------------------------------------------------------------


def test_wrong_sizes_raise_at_the_call() -> None:
    x = torch.ones(3, device=DEVICE)
    with torch.neuron.eager_mode("fused"):
        with pytest.raises(RuntimeError, match="must match the size of tensor b"):
            x + torch.ones(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            torch.ones(1, device=DEVICE).expand(3).add_(1)
        y = torch.ones(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="unsupported operation"):
            y[1:].add_(y[:-1])


@pytest.mark.parametrize("times", [1, 2])
def test_wrong_values_raise_when_they_are_computed(times: int) -> None:
    zero = torch.zeros(3, dtype=torch.int64)
    with torch.neuron.eager_mode("fused"):
        for _ in range(times):
            found = torch.div(torch.ones_like(zero).to(DEVICE), zero.to(DEVICE), rounding_mode="floor")
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                found.cpu()
            assert not waits()


def test_what_cannot_be_compiled_runs_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(functions, "compile_function", refuse)
    x = torch.randn(5)
    with caplog.at_level("WARNING"):
        found = fused(lambda x: (x * 7).atan() - 3, x, times=3)
    torch.testing.assert_close(found.cpu(), (x * 7).atan() - 3)
    assert [r.message for r in caplog.records] == [
        "3 queued operators run one by one: compiling them raised ValueError: no"
    ]


@pytest.mark.parametrize(
    ("mode", "given", "says"),
    [
        ("lazy", {}, "it takes one of 'each', 'fused', 'compiled'"),
        ("fused", {"limit": 0}, "whole number from 1"),
        ("compiled", {"limit": 4}, "a limit is for mode 'fused'"),
        ("each", {"options": {"strict": True}}, "takes no options"),
        ("fused", {"options": {"nonsense": 1}}, "unknown option 'nonsense'"),
    ],
)
def test_modes_that_there_are_not(mode: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        torch.neuron.set_eager_mode(mode, **given)
    with pytest.raises(OptionsError, match=says), torch.neuron.eager_mode(mode, **given):
        pass


# Which threads ------------------------------------------------------------


def test_contexts_nest_and_belong_to_their_thread() -> None:
    x = torch.ones(2, device=DEVICE)
    elsewhere: list[object] = []
    with torch.neuron.eager_mode("fused"):
        y = x + 1
        with torch.neuron.eager_mode("each"):
            assert torch.neuron.get_eager_mode() == "each"
            z = x + 2
        assert torch.neuron.get_eager_mode() == "fused"
        assert waits()
        assert z.tolist() == [3, 3]
        assert waits()

        def other() -> None:
            elsewhere.extend([torch.neuron.get_eager_mode(), (y + 1).tolist()])

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert elsewhere == ["each", [3, 3]]


def test_the_default_is_for_all_threads() -> None:
    found: list[object] = []

    def other() -> None:
        found.append(torch.neuron.get_eager_mode())
        y = torch.ones(2, device=DEVICE) * 4
        found.append(waits())
        found.append(y.tolist())

    torch.neuron.set_eager_mode("fused")
    try:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        pending = torch.ones(2, device=DEVICE) + 1
    finally:
        torch.neuron.set_eager_mode("each")
    assert found == ["fused", True, [4, 4]]
    assert pending.tolist() == [2, 2]


def test_threads_share_nothing_but_tensors() -> None:
    x = torch.randn(16, 16, device=DEVICE)
    wanted = [chain(x.cpu() * k, x.cpu()) for k in range(4)]
    found: dict[int, torch.Tensor] = {}

    def work(k: int) -> None:
        with torch.neuron.eager_mode("fused"):
            for _ in range(20):
                found[k] = chain(x * k, x).cpu()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        torch.testing.assert_close(found[k], wanted[k])


def test_set_for_a_process() -> None:
    code = """
x = torch.arange(4.0).neuron()
y = x * 2 + 1
from neuron_compiler.eager_fallback import loader
print(torch.neuron.get_eager_mode(), loader.loaded().queue_is_empty(), y.tolist(), loader.loaded().queue_is_empty())
"""
    assert in_fresh_process.on_device(code, NEURON_COMPILER_EAGER_MODE="fused") == [
        "fused False [1.0, 3.0, 5.0, 7.0] True"
    ]
    failed = in_fresh_process.run(in_fresh_process.REGISTER, check=False, NEURON_COMPILER_EAGER_MODE="lazy")
    assert "NEURON_COMPILER_EAGER_MODE is 'lazy'; it takes one of each, fused, compiled" in failed.stderr


# Mode compiled ------------------------------------------------------------


def test_compiled_runs_every_operator_by_a_program(compiled: list[int]) -> None:
    x, w, image = torch.randn(4, 8), torch.randn(3, 8), torch.randn(1, 2, 6, 6)
    with torch.neuron.eager_mode("compiled"):
        found = F.gelu(F.linear(x.to(DEVICE), w.to(DEVICE)))
        assert not waits()
        assert len(compiled) >= 2
        assert set(compiled) == {1}
        pooled = F.max_pool2d(F.conv2d(image.to(DEVICE), image.to(DEVICE)[:, :, :3, :3]), 2)
    torch.testing.assert_close(found.cpu(), F.gelu(F.linear(x, w)))
    torch.testing.assert_close(pooled.cpu(), F.max_pool2d(F.conv2d(image, image[:, :, :3, :3]), 2))


def test_compiled_says_what_it_has_no_program_for() -> None:
    def missed() -> dict[str, int]:
        return {e.op: n for e, n in LEDGER.counts("fallback").items() if "eager mode" in e.cause}

    before = missed()
    with torch.neuron.eager_mode("compiled"):
        found = torch.tensor([3, 1, 3], device=DEVICE).unique()
    assert found.tolist() == [1, 3]
    new = {op: n - before.get(op, 0) for op, n in missed().items() if n != before.get(op, 0)}
    assert new == {"aten::_unique2": 1}


def test_compiled_has_the_arithmetic_of_the_chip_where_asked() -> None:
    x = torch.randn(64, 300)
    options = {"emulation": "tile"}
    with torch.neuron.eager_mode("compiled", options=options):
        found = torch.mm(x.to(DEVICE), x.t().to(DEVICE))
    wanted = torch.compile(torch.mm, backend="neuron", options=options)(x, x.t())
    assert torch.equal(found.cpu(), wanted)
    assert not torch.equal(found.cpu(), torch.mm(x, x.t()))


def test_numbers_that_change_leave_nothing_behind(compiled: list[int]) -> None:
    x = torch.ones(4, device=DEVICE)
    with torch.neuron.eager_mode("fused"):
        for step in range(3 * modes.ONCE_KEPT):
            assert (x * (step + 0.5)).tolist() == [step + 0.5] * 4
    assert not compiled
    assert len(modes._once) == modes.ONCE_KEPT
