"""The text of a queue, read back, and the program run."""

from __future__ import annotations

import json

import pytest
import torch

from neuron_compiler.eager_fallback import eager_mode as modes
from neuron_compiler.eager_fallback import queued_ops, queued_program
from neuron_compiler.eager_fallback.queued_program import View, Whole, parse
from neuron_compiler.errors import DeviceError


def last() -> queued_program.QueuedProgram:
    """The program that ran last."""
    torch.neuron.synchronize()
    return modes._last


def test_what_is_read_is_what_was_called() -> None:
    x = torch.arange(12.0, device="neuron").view(3, 4)
    with torch.neuron.eager_mode("fused"):
        kept = torch.add(x.t(), 2.5, alpha=3)
        part = torch.cat([kept[1:3], kept[:1]])
        part.sum(0, dtype=torch.float64)
        program = last()
    assert program.device == 0
    assert program.inputs == (Whole(0, torch.float32, (4, 3), (1, 4)),)
    add, cat, total = program.calls
    assert str(add.overload) == "aten.add.Tensor"
    assert add.args == (View(0, (4, 3), (1, 4), 0), 2.5)
    assert dict(add.kwargs) == {"alpha": 3}
    assert add.results == (Whole(1, torch.float32, (4, 3), (1, 4)),)
    assert cat.args == ([View(1, (2, 3), (1, 4), 1), View(1, (1, 3), (1, 4), 0)], 0)
    assert dict(total.kwargs) == {"dtype": torch.float64}
    assert total.args[1:] == ([0], False)
    assert program.live == (1, 2)
    assert torch.equal(kept.cpu(), x.cpu().t() + 7.5)


@pytest.mark.parametrize("dtype", [d for n, d in queued_program.DTYPES.items() if n < 23])
def test_types_have_the_numbers_that_pytorch_gives_them(dtype: torch.dtype) -> None:
    x = torch.ones(3, device="neuron").to(dtype)
    with torch.neuron.eager_mode("fused"):
        y = torch.empty_like(x)
        y.copy_(x.view(3, 1)[:, 0])
        program = last()
    assert [whole.dtype for whole in program.inputs] == [dtype]
    assert torch.equal(y.cpu(), x.cpu())


def test_memory_that_is_written_whole_is_not_read() -> None:
    with torch.neuron.eager_mode("fused"):
        y = torch.zeros(2, 3, device="neuron").t()
        y += 1
        program = last()
    assert program.inputs == ()
    assert program.calls[0].results == (Whole(0, torch.float32, (2, 3), (3, 1)),)
    assert y.tolist() == [[1, 1]] * 3


def test_operators_that_are_gone_are_named() -> None:
    with pytest.raises(DeviceError, match="aten::no_such.thing was queued and is not registered now"):
        parse(
            json.dumps({"device": 0, "inputs": [], "default": 6, "ops": [["aten::no_such.thing", [], []]], "live": []})
        )


@pytest.mark.parametrize(
    ("name", "queues"),
    [
        ("aten::add.Tensor", queued_ops.ALL),
        ("aten::mul_.Tensor", queued_ops.ALL),
        ("aten::native_layer_norm", queued_ops.ALL),
        ("aten::mm", queued_ops.ALONE),
        ("aten::convolution", queued_ops.ALONE),
        ("aten::sort.stable", queued_ops.ALONE),
        ("aten::bernoulli_.float", queued_ops.NONE),  # draws
        ("aten::nonzero", queued_ops.NONE),  # its size depends on values
        ("aten::add.out", queued_ops.NONE),
        ("aten::view", queued_ops.NONE),
        ("aten::_foreach_add_.Scalar", queued_ops.NONE),
        ("someone::elses", queued_ops.NONE),
    ],
)
def test_which_operators_wait(name: str, queues: int) -> None:
    assert queued_ops.queues(name) == queues


def test_numbers_stand_for_tensors_where_pytorch_lets_them() -> None:
    assert queued_ops.numbers("aten::add.Tensor") == queued_ops.NUMBERS
    assert queued_ops.numbers("aten::remainder.Tensor") == 0
    x = torch.arange(-3, 4, device="neuron")
    with torch.neuron.eager_mode("fused"):
        assert torch.remainder(x, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
