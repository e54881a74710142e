"""Where operators that wait could be told from those that run at once: types, memory, contexts, errors."""

from __future__ import annotations

import io
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import in_fresh_process
import pytest
import torch
from torch.nn import functional as F

from neuron_compiler.eager_fallback import eager_mode as modes

DEVICE = "neuron"


def waits() -> bool:
    """Whether something is queued."""
    return not modes.loader.loaded().queue_is_empty()


# Types ------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x & x, torch.float32),
        (lambda x: torch.lerp(x, x, 0.5), torch.uint8),
        (F.silu, torch.int64),
        (torch.floor, torch.complex64),
        (torch.relu, torch.complex64),
        (lambda x: torch.maximum(x, x), torch.complex64),
        (lambda x: x.amax(), torch.complex64),
        (lambda x: x.softmax(-1), torch.int64),
        (lambda x: x.var(), torch.int64),
        (lambda x: x**-1, torch.int64),
        (lambda x: x.fill_(float("inf")), torch.uint8),
    ],
)
@pytest.mark.parametrize("mode", ["fused", "compiled"])
def test_what_a_kernel_refuses_is_refused_at_the_call(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, mode: str
) -> None:
    x = torch.arange(4).to(dtype)
    with pytest.raises(Exception) as wanted:  # noqa: PT011
        function(x.clone())
    with torch.neuron.eager_mode(mode):
        for _ in range(2):
            with pytest.raises(wanted.type) as found:
                function(x.to(DEVICE))
            assert str(found.value) == str(wanted.value)


def test_large_and_odd_arguments_wait_nevertheless() -> None:
    x = torch.randn(3, 100, 100)
    with torch.neuron.eager_mode("fused"):
        found = F.layer_norm(x.to(DEVICE), (100, 100))
        assert waits()
        torch.testing.assert_close(found.cpu(), F.layer_norm(x, (100, 100)))


def test_the_default_type_is_that_of_the_call() -> None:
    x = torch.arange(1, 5)
    third = x.double() / 3
    with torch.neuron.eager_mode("fused"):
        for _ in range(3):
            given = x.to(DEVICE)
            before = given / 3
            torch.set_default_dtype(torch.float64)
            try:
                inside = given / 3
                at_once = given / 3
                assert torch.equal(at_once.cpu(), third)
                inside = given / 3
            finally:
                torch.set_default_dtype(torch.float32)
            after = given / 3
            assert [t.dtype for t in (before, inside, after)] == [torch.float32, torch.float64, torch.float32]
            assert torch.equal(inside.cpu(), third)
            assert torch.equal(before.cpu(), third.float())
            assert torch.equal(after.cpu(), third.float())


def test_packed_types_do_not_wait() -> None:
    x = torch.empty(4, dtype=torch.float4_e2m1fn_x2, device=DEVICE)
    with torch.neuron.eager_mode("fused"):
        torch.empty_like(x).copy_(x)
        assert not waits()
        torch.neuron.synchronize()


def test_numbers_on_the_device_promote_as_numbers() -> None:
    x = torch.tensor(1.5, dtype=torch.bfloat16)
    with torch.neuron.eager_mode("fused"):
        for _ in range(2):
            given = x.to(DEVICE)
            chosen = torch.where(given > 0, given, 2.0)
            tensor = torch.where(given > 0, given, torch.tensor(2.0, dtype=torch.float64).to(DEVICE))
            assert (chosen.dtype, tensor.dtype) == (torch.bfloat16, torch.float64)
            assert (chosen.item(), tensor.item()) == (1.5, 1.5)


# Memory ------------------------------------------------------------


def in_two_types(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, x.view(torch.int32))


def windows(x: torch.Tensor) -> torch.Tensor:
    x.unfold(0, 3, 1).add_(1)
    return x


def rows_that_meet(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((3, 3), (1, 1)).mul_(2)
    return x


@pytest.mark.parametrize("function", [in_two_types, windows, rows_that_meet])
def test_memory_that_programs_cannot_describe(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.arange(8.0)
    wanted = function(x.clone())
    with torch.neuron.eager_mode("fused"):
        for _ in range(3):
            assert torch.equal(function(x.to(DEVICE)).cpu(), wanted)


def test_bytes_of_a_storage_are_those_that_were_computed() -> None:
    def fresh() -> torch.Tensor:
        found = torch.ones(3, device=DEVICE) + 1
        assert waits()
        return found

    with torch.neuron.eager_mode("fused"):
        legacy = io.BytesIO()
        torch.save(fresh(), legacy, _use_new_zipfile_serialization=False)
        legacy.seek(0)
        assert torch.load(legacy).tolist() == [2, 2, 2]
        assert pickle.loads(pickle.dumps(fresh())).tolist() == [2, 2, 2]
        assert list(fresh().untyped_storage().cpu())[:4] == [0, 0, 0, 64]
        filled = fresh()
        filled.untyped_storage().fill_(0)
        assert filled.tolist() == [0, 0, 0]


# Contexts ------------------------------------------------------------


def test_contexts_are_left_in_any_order() -> None:
    first, second = torch.neuron.eager_mode("fused"), torch.neuron.eager_mode("each")
    with first:
        pass
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.neuron.get_eager_mode() == "each"
    torch.ones(2, device=DEVICE) + 1
    assert not waits()
    second.__exit__(None, None, None)
    assert torch.neuron.get_eager_mode() == "each"
    torch.ones(2, device=DEVICE) + 1
    assert not waits()


def test_contexts_are_left_in_any_thread() -> None:
    def values() -> Iterator[torch.Tensor]:
        with torch.neuron.eager_mode("fused"):
            yield torch.ones(2, device=DEVICE) + 1

    generator: Any = values()
    found = next(generator)
    assert waits()
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()
    assert not waits()
    assert torch.neuron.get_eager_mode() == "each"
    assert found.tolist() == [2, 2]


def test_a_context_decorates_a_function_that_calls_itself() -> None:
    @torch.neuron.eager_mode("fused")
    def halved(x: torch.Tensor, times: int) -> torch.Tensor:
        assert torch.neuron.get_eager_mode() == "fused"
        return halved(x / 2, times - 1) if times else x

    assert halved(torch.ones(2, device=DEVICE), 3).tolist() == [0.125, 0.125]
    assert torch.neuron.get_eager_mode() == "each"


@pytest.mark.parametrize("profiler_first", [True, False])
def test_a_profiler_may_end_after_the_context_or_before(profiler_first: bool) -> None:
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    context = torch.neuron.eager_mode("fused")
    both = [profiler, context] if profiler_first else [context, profiler]
    for one in both:
        one.__enter__()
    found = torch.ones(3, device=DEVICE) + 1
    for one in both:
        one.__exit__(None, None, None)
    assert found.tolist() == [2, 2, 2]
    assert torch.neuron.get_eager_mode() == "each"
    assert any(event.name == "aten::add" for event in profiler.events())


def test_a_process_that_ends_within_a_context_says_nothing() -> None:
    code = 'context = torch.neuron.eager_mode("fused"); context.__enter__(); y = torch.ones(3, device="neuron") + 1'
    ended = in_fresh_process.run(in_fresh_process.REGISTER + "\n" + code)
    assert ended.stderr == ""


def test_dynamo_leaves_the_running_of_queues_alone() -> None:
    @torch.compile(backend="eager")
    def within(x: torch.Tensor) -> torch.Tensor:
        with torch.neuron.eager_mode("fused"):
            return x.cos() + 1

    @torch.compile(backend="eager")
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return (x * 2).sum().item() + x

    x = torch.zeros(3, device=DEVICE)
    assert within(x).tolist() == [2, 2, 2]
    with torch.neuron.eager_mode("fused"):
        assert broken(x + 1).tolist() == [7, 7, 7]
    assert torch.neuron.get_eager_mode() == "each"


def test_operators_are_counted_once() -> None:
    with torch.neuron.eager_mode("fused"):
        for _ in range(3):
            x = torch.ones(3, device=DEVICE)
            torch.neuron.synchronize()
            torch.neuron.clear_op_tracking()
            with torch.neuron.track_ops():
                y = x.exp().add_(x)
                torch.neuron.synchronize()
            rows = {row.op: (row.calls, row.bytes) for row in torch.neuron.ledger().rows}
            assert rows == {"aten::exp": (1, 24), "aten::add_.Tensor": (1, 36)}
            assert y.tolist() == pytest.approx([3.7182817] * 3)


# Errors ------------------------------------------------------------


def test_an_error_takes_nothing_from_what_does_not_depend_on_it() -> None:
    with torch.neuron.eager_mode("fused"):
        for _ in range(3):
            x = torch.ones(3, device=DEVICE)
            before = x + 1
            whole = torch.full((3,), 7, device=DEVICE)
            wrong = whole // (whole - 7)
            later = before.mul_(2) + wrong
            after = before + 1
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                later.tolist()
            assert x.tolist() == [1, 1, 1]
            assert before.tolist() == [4, 4, 4]
            assert after.tolist() == [5, 5, 5]


def test_an_interrupt_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    reached = False
    # Python has no handler where the process was started with the signal ignored, as in the background of a shell.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(modes, "_execute", interrupted)
            try:
                try:
                    with torch.neuron.eager_mode("fused"):
                        (torch.ones(3, device=DEVICE) + 1).tolist()
                except RuntimeError:
                    time.sleep(10)
            except KeyboardInterrupt:
                reached = True
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached
    assert torch.neuron.get_eager_mode() == "each"
    assert not waits()
    with torch.neuron.eager_mode("fused"):
        assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]
