"""Steps over slots: order, what is freed when, and what is counted."""

import weakref

import torch

from neuron_compiler.ledger import LEDGER, Entry
from neuron_compiler.sequence import Fresh, RunEager, Sequence, Slot, Writeback, eager_getitem


class FakeExecutable:
    """Stands for a compiled segment: adds one to each argument."""

    def __call__(self, arguments):
        return [a + 1 for a in arguments]


def test_steps_run_in_order_and_empty_their_arguments():
    from neuron_compiler.sequence import RunExecutable

    double = RunEager(torch.mul, (Slot(0), 2), (), 2, Entry("fallback", "aten.mul.Tensor", "planted", "model.py:1"))
    run = RunExecutable(FakeExecutable(), (2,), (3,))
    sequence = Sequence(1, [torch.tensor(10.0)], [double, run], 4, [Slot(3), Slot(1), 7, None])
    arguments = [torch.tensor(3.0)]
    assert sequence(arguments) == [torch.tensor(7.0), torch.tensor(10.0), 7, None]
    assert arguments == []
    assert LEDGER.counts("fallback") == {Entry("fallback", "aten.mul.Tensor", "planted", "model.py:1"): 1}


def test_a_value_is_freed_after_its_last_reader():
    alive = []

    def probe(x):
        alive.append(reference() is not None)
        return x

    steps = [RunEager(torch.neg, (Slot(0),), (), 1, None), RunEager(probe, (Slot(1),), (), 2, None)]
    sequence = Sequence(1, [], steps, 3, [Slot(2)])
    x = torch.ones(2)
    reference = weakref.ref(x)
    arguments = [x]
    del x
    sequence(arguments)
    assert alive == [False]


def test_lists_keywords_and_fresh_tensors_reach_the_op():
    steps = [
        RunEager(torch.cat, ([Slot(0), Slot(0)],), (("dim", 0),), 1, None),
        RunEager(torch.zeros_like, (Fresh((2, 3), (1, 2), torch.int32, torch.device("cpu")),), (), 2, None),
        RunEager(torch.max, (Slot(1), 0), (), 3, None),
        eager_getitem(3, 1, 4),
    ]
    sequence = Sequence(1, [], steps, 5, [Slot(1), Slot(2), Slot(4)])
    cat, zeros, index = sequence([torch.tensor([1.0, 5.0])])
    assert cat.tolist() == [1.0, 5.0, 1.0, 5.0]
    assert (zeros.dtype, zeros.stride()) == (torch.int32, (1, 2))
    assert index.item() == 1


def test_writeback_changes_the_argument():
    target = torch.zeros(2)
    Sequence(2, [], [Writeback(0, 1)], 2, [])([target, torch.ones(2)])
    assert target.tolist() == [1.0, 1.0]
