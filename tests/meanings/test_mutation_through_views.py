"""A write through a view reaches its base, whatever the kind of view and whoever holds the base."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from agreement import Programs, assert_agree, compiled

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "view": lambda x: x.view(2, 12),
    "reshape": lambda x: x.reshape(6, 4),
    "view_as": lambda x: x.view_as(x),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "t": lambda x: x[0].t(),
    "T": lambda x: x[0].T,
    "mT": lambda x: x.mT,
    "adjoint": lambda x: x.adjoint(),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "select": lambda x: x.select(1, 2),
    "index": lambda x: x[1, 2, 3],
    "negative index": lambda x: x[-1, ..., -2],
    "slice": lambda x: x[:, 1:, ::2],
    "ellipsis": lambda x: x[..., 1:3],
    "new axis": lambda x: x[:, None, 1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "split": lambda x: x.split(2, 1)[1],
    "split with sizes": lambda x: x.split([1, 2], 1)[1],
    "tensor_split": lambda x: x.tensor_split((1, 3), 2)[1],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "hsplit": lambda x: x.hsplit(3)[2],
    "unbind": lambda x: x.unbind(1)[2],
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (4, 1), 5),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "expand_as itself": lambda x: x.expand_as(x),
    "view of the same width": lambda x: x.view(torch.int32),
    "view of another width": lambda x: x.view(torch.int16),
    "view_as_complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(2, 3, 2, 2))),
    "view of a view": lambda x: x.transpose(0, 2)[1:].permute(1, 2, 0)[..., ::2].unsqueeze(0)[0, 1],
}


def base() -> torch.Tensor:
    return torch.arange(24.0).sub(5.5).reshape(2, 3, 4)


def added(view: View) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        view(x).add_(7)
        return x * 2

    return program


def added_to_an_intermediate(view: View) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        v = view(y)
        v.add_(7)
        y.sub_(1)
        return y, v + 0

    return program


def test_of_an_argument() -> None:
    assert_agree({name: added(view) for name, view in VIEWS.items()}, base())


def test_of_an_intermediate_which_is_read_and_written_again() -> None:
    assert_agree({name: added_to_an_intermediate(view) for name, view in VIEWS.items()}, base())


def test_the_written_view_is_returned_with_its_base() -> None:
    def program(view: View) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
        def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x + 0
            v = view(y)
            v.fill_(3)
            return v, y

        return run

    assert_agree({name: program(view) for name, view in VIEWS.items()}, base())


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "mul_": lambda v: v.mul_(3),
    "copy_ of a smaller tensor": lambda v: v.copy_(torch.arange(2.0)),
    "fill_": lambda v: v.fill_(9),
    "zero_": lambda v: v.zero_(),
    "masked_fill_": lambda v: v.masked_fill_(v > 4, -1),
    "index_fill_": lambda v: v.index_fill_(0, torch.tensor([1]), 5),
    "index_put_": lambda v: v.index_put_((torch.tensor([0, 0]), torch.tensor([1, 1])), torch.tensor(2.0), True),
    "index_add_": lambda v: v.index_add_(0, torch.tensor([1, 1]), torch.ones(2, 2)),
    "scatter_": lambda v: v.scatter_(1, torch.tensor([[1], [0]]), 8.0),
    "scatter_add_": lambda v: v.scatter_add_(1, torch.tensor([[1, 1], [0, 0]]), torch.ones(2, 2)),
    "clamp_": lambda v: v.clamp_(0, 3),
    "relu_": lambda v: torch.relu_(v),
    "sort into": lambda v: v.copy_(v.flip(1)),
    "setitem": lambda v: v.__setitem__((slice(None), 0), 6.0),
    "setitem by mask": lambda v: v.__setitem__(v > 3, 0.5),
    "setitem by list": lambda v: v.__setitem__(([1, 0], [0, 1]), torch.tensor([1.5, 2.5])),
    "t_": lambda v: v.t_(),
}


def test_every_kind_of_write() -> None:
    def program(write: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            write(x[:, 1, ::2])
            return x + 1

        return run

    assert_agree({name: program(write) for name, write in WRITES.items()}, base())


def test_chains_of_writes_through_views_of_one_base() -> None:
    # Each pair writes through one view, then reads and writes through another.
    some = ["transpose", "select", "slice", "diagonal", "as_strided", "unfold", "view of the same width"]

    def program(first: View, second: View) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
        def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            a, b = first(x), second(x)
            a.mul_(2)
            read = b + 1
            b.add_(1)
            return read, a + 0

        return run

    programs: Programs = {
        f"{a}, {b}": program(VIEWS[a], VIEWS[b])
        for a, b in itertools.permutations(some, 2)
        # The bits of a float as an integer may be any; what matters is that they are the same ones.
    }
    assert_agree(programs, base())


def test_of_a_complex_number_and_its_parts() -> None:
    programs: Programs = {
        "real": lambda x: x.real.mul_(2),
        "imag": lambda x: x.imag.add_(1),
        "view_as_real": lambda x: torch.view_as_real(x)[..., 0].neg_(),
        "conj": lambda x: x.conj().mul_(2),
        "imag of conj": lambda x: x.conj().imag.add_(3),
        "mH": lambda x: x.mH.add_(1j),
    }
    assert_agree(programs, torch.complex(torch.arange(6.0), torch.arange(6.0) - 2).reshape(2, 3))


def test_of_a_parameter_under_no_grad() -> None:
    class Clipped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(-4.0, 5.0).reshape(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.diagonal().clamp_(0, 2)
            return x @ self.weight.t()

    eager, model = Clipped(), Clipped()
    x = torch.arange(6.0).reshape(2, 3)
    want, got = eager(x), compiled(model)(x)
    assert torch.equal(got, want)
    assert model.weight.diagonal().tolist() == eager.weight.diagonal().tolist() == [0.0, 0.0, 2.0]
    got.sum().backward()
    want.sum().backward()
    assert torch.equal(model.weight.grad, eager.weight.grad)  # type: ignore[arg-type]


def test_a_write_is_seen_by_views_that_the_caller_holds() -> None:
    x = base()
    held = [view(x) for view in VIEWS.values()]
    version = x._version
    compiled(lambda x: x.select(0, 1).zero_())(x)
    assert x._version > version
    assert all(torch.equal(a, view(x)) for a, view in zip(held, VIEWS.values(), strict=True))
    assert x[1].abs().sum() == 0
    assert x[0].tolist() == base()[0].tolist()


@pytest.mark.parametrize("training", [False, True])
def test_gradients_through_a_written_view(training: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 1].mul_(w)
        y.transpose(0, 2)[1].sub_(w[0])
        return (y * y).sum()

    results = []
    for function in (program, compiled(program)):
        x, w = base().requires_grad_(training), torch.arange(4.0).requires_grad_(training)
        loss = function(x, w)
        results.append([loss.detach(), *(torch.autograd.grad(loss, (x, w)) if training else ())])
    for got, want in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
