"""Sparse tensors of the device: all layouts, their parts, in place, out=, gradients, optimizers, copies, saving."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]


def coo(device: str) -> Tensor:
    """3x4, with an index that occurs twice."""
    indices = torch.tensor([[0, 1, 1], [1, 2, 2]], device=device)
    return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, -3.0], device=device), (3, 4))


def compressed(device: str, layout: torch.layout) -> Tensor:
    dense = torch.tensor([[0, 1.0, 0, 2], [3, 0, 0, 0], [0, 0, 4, 5], [6, 0, 0, 0]], device=device)
    return dense.to_sparse(layout=layout, blocksize=(2, 2) if layout in COMPRESSED[2:] else None)


def check(there: object, here: object) -> None:
    """The same values, layouts and parts; what is a tensor is on the device."""
    if not isinstance(here, Tensor):
        assert there == here
        return
    assert isinstance(there, Tensor)
    assert (there.device.type, there.layout, there.dtype) == ("neuron", here.layout, here.dtype)
    if here.layout is torch.sparse_coo:
        assert (there._nnz(), there.is_coalesced()) == (here._nnz(), here.is_coalesced())
        check(there._indices(), here._indices())
        check(there._values(), here._values())
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0)


def added_in_place(device: str) -> list[Tensor]:
    x = coo(device)
    before = x._values()
    return [x.add_(coo(device)), before]


def scaled_in_place(device: str) -> list[Tensor]:
    x = coo(device).coalesce()
    values = x.values()
    x.mul_(2)
    return [x, values]


def filled(device: str) -> Tensor:
    x = torch.zeros(3, 4, device=device).to_sparse()
    return x.copy_(coo("cpu"))


def made_of(device: str) -> Tensor:
    values = torch.tensor([1.0, 2.0], device=device)
    made = torch.sparse_coo_tensor(torch.tensor([[0, 1], [0, 1]], device=device), values)
    values.mul_(3)
    return made


def saved(device: str) -> Tensor:
    file = io.BytesIO()
    torch.save(coo(device), file)
    file.seek(0)
    loaded: Tensor = torch.load(file)
    return loaded


PROGRAMS: dict[str, Callable[[str], object]] = {
    "made": coo,
    "made of values that change": made_of,
    "coalesced": lambda d: coo(d).coalesce(),
    "counts": lambda d: (coo(d)._nnz(), coo(d).sparse_dim(), coo(d).dense_dim(), coo(d).is_coalesced()),
    "from dense": lambda d: torch.eye(3, device=d).to_sparse(),
    "to dense": lambda d: coo(d).to_dense(),
    "hybrid": lambda d: torch.ones(2, 3, device=d).to_sparse(1),
    "new": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "like": lambda d: torch.zeros_like(coo(d)),
    "moved": lambda d: coo("cpu").to(d),
    "other dtype": lambda d: coo(d).double(),
    "clone": lambda d: coo(d).clone(),
    "deepcopy": lambda d: copy.deepcopy(coo(d)),
    "saved": saved,
    "filled from the CPU": filled,
    "plus sparse": lambda d: coo(d) + coo(d),
    "plus dense": lambda d: torch.ones(3, 4, device=d) + coo(d),
    "dense in place": lambda d: torch.ones(3, 4, device=d).add_(coo(d)),
    "sparse in place": added_in_place,
    "scaled in place": scaled_in_place,
    "zeroed": lambda d: coo(d).zero_(),
    "resized": lambda d: coo(d).sparse_resize_((5, 6), 2, 0),
    "emptied": lambda d: coo(d).sparse_resize_and_clear_((5, 6), 2, 0),
    "times dense": lambda d: coo(d) @ torch.ones(4, 2, device=d),
    "times sparse": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "out": lambda d: torch.mm(coo(d), torch.ones(4, 2, device=d), out=torch.empty(0, 0, device=d)),
    "sparse out": lambda d: torch.add(coo(d), coo(d), out=torch.zeros(3, 4, device=d).to_sparse()),
    "masked": lambda d: torch.arange(12.0, device=d).view(3, 4).sparse_mask(coo(d).coalesce()),
    "sums": lambda d: [torch.sparse.sum(coo(d)), torch.sparse.sum(coo(d), 1)],
    "softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "elementwise": lambda d: [f(coo(d).coalesce()) for f in (torch.sin, torch.neg, torch.abs, torch.relu)],
    "selected": lambda d: coo(d).index_select(0, torch.tensor([1, 0], device=d)),
    "joined": lambda d: torch.cat([coo(d), coo(d)]),
    "to compressed": lambda d: coo(d).to_sparse_csr(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(name: str) -> None:
    here, there = PROGRAMS[name]("cpu"), PROGRAMS[name]("neuron")
    if not isinstance(here, list):
        here, there = [here], [there]
    assert isinstance(there, list)
    for ours, theirs in zip(there, here, strict=True):
        check(ours, theirs)


COMPRESSED_PROGRAMS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "made": lambda x, d: x,
    "values": lambda x, d: x.values(),
    "to dense": lambda x, d: x.to_dense(),
    "clone": lambda x, d: x.clone(),
    "moved": lambda x, d: x.cpu().to(d),
    "scaled in place": lambda x, d: x.mul_(2),
    "filled": lambda x, d: x.clone().mul_(0).copy_(x),
    "to COO": lambda x, d: x.to_sparse_coo(),
}


@pytest.mark.parametrize("name", COMPRESSED_PROGRAMS)
@pytest.mark.parametrize("layout", COMPRESSED, ids=str)
def test_compressed_layouts_are_as_on_the_cpu(layout: torch.layout, name: str) -> None:
    program = COMPRESSED_PROGRAMS[name]
    check(program(compressed("neuron", layout), "neuron"), program(compressed("cpu", layout), "cpu"))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc], ids=str)
def test_compressed_products(layout: torch.layout) -> None:
    def product(device: str) -> Tensor:
        return compressed(device, layout) @ torch.arange(8.0, device=device).view(4, 2)

    check(product("neuron"), product("cpu"))


def test_values_and_parts_are_the_same_memory() -> None:
    x = coo("neuron").coalesce()
    assert x.values().data_ptr() == x._values().data_ptr()
    x.values().fill_(7)
    assert x.to_dense().sum().item() == 14
    y = compressed("neuron", torch.sparse_csr)
    y.values().fill_(1)
    assert y.to_dense().sum().item() == 6


def test_gradients() -> None:
    def gradients(device: str) -> list[Tensor | None]:
        x, weight = coo(device).coalesce().requires_grad_(), torch.ones(4, 2, device=device, requires_grad=True)
        torch.sparse.mm(x, weight).square().sum().backward()
        return [x.grad, weight.grad]

    for there, here in zip(gradients("neuron"), gradients("cpu"), strict=True):
        check(there, here)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_reducing_products(reduce: str) -> None:
    def gradients(device: str) -> list[Tensor | None]:
        x = compressed(device, torch.sparse_csr).requires_grad_()
        weight = torch.arange(8.0, device=device).view(4, 2).cos().requires_grad_()
        torch.sparse.mm(x, weight, reduce).square().sum().backward()
        return [x.grad, weight.grad]

    for there, here in zip(gradients("neuron"), gradients("cpu"), strict=True):
        check(there, here)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_embeddings_with_sparse_gradients(layer: type[nn.Module], optimizer: type[torch.optim.Optimizer]) -> None:
    def trained(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        table = layer(10, 3, sparse=True).to(device)
        step = optimizer(table.parameters(), lr=0.1)
        ids = torch.tensor([[1, 2, 2, 5]], device=device)
        for _ in range(3):
            table(ids).square().sum().backward()  # gradients of the steps before are added to
            step.step()
        weight: Tensor = table.weight
        assert weight.grad is not None
        return [weight.detach(), weight.grad]

    (weight, gradient), (weight_here, gradient_here) = trained("neuron"), trained("cpu")
    assert gradient.layout is torch.sparse_coo
    torch.testing.assert_close(weight.cpu(), weight_here)
    torch.testing.assert_close(gradient.cpu(), gradient_here)


def test_errors() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        coo("neuron") @ torch.ones(4, 2)
    with pytest.raises(NotImplementedError, match="aten::exp"):
        coo("neuron").exp()
    indices = torch.tensor([[0, 9]], device="neuron")
    with pytest.raises(RuntimeError, match="found index 9"):
        torch.sparse_coo_tensor(indices, torch.ones(2, device="neuron"), (3,), check_invariants=True)


def test_memory_is_given_back() -> None:
    before = torch.neuron.memory_allocated()
    x = coo("neuron").coalesce()
    assert torch.neuron.memory_allocated() > before
    del x
    assert torch.neuron.memory_allocated() == before


def test_compiled_code_takes_them() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.sparse.mm(x, y).relu() + 1

    torch.compiler.reset()
    y = torch.ones(4, 2, device="neuron")
    check(torch.compile(f, backend="neuron")(coo("neuron"), y), f(coo("cpu"), y.cpu()))
