"""Making tensors on the device, and printing them."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

FACTORIES: dict[str, Callable[[str], torch.Tensor]] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, 3, dtype=torch.bfloat16, device=d),
    "full": lambda d: torch.full((2, 2), 7, device=d),
    "arange": lambda d: torch.arange(1, 9, 2, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 3, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "hann_window": lambda d: torch.hann_window(8, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "scalar": lambda d: torch.tensor(2.5, device=d),
    "as_tensor": lambda d: torch.as_tensor(numpy.arange(4.0), device=d),
    "complex": lambda d: torch.zeros(2, dtype=torch.complex64, device=d),
    "bool": lambda d: torch.tensor([True, False], device=d),
    "nothing": lambda d: torch.zeros(0, 3, device=d),
    "rand": lambda d: torch.rand(5, device=d),
    "randn": lambda d: torch.randn(40, device=d),
    "randint": lambda d: torch.randint(0, 9, (6,), device=d),
    "randperm": lambda d: torch.randperm(11, device=d),
    "new_ones": lambda d: torch.zeros(1, device=d).new_ones(2, dtype=torch.int32),
    "like": lambda d: torch.full_like(torch.zeros(2, 3, device=d).t(), 4),
    "rand_like": lambda d: torch.rand_like(torch.zeros(3, device=d)),
    "strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(1),
    "channels_last": lambda d: torch.empty(1, 2, 3, 3, device=d, memory_format=torch.channels_last).fill_(2),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_made_as_on_the_cpu(name: str) -> None:
    make = FACTORIES[name]
    torch.manual_seed(3)
    here = make("cpu")
    torch.manual_seed(3)
    there = make("neuron")
    assert there.device == torch.device("neuron:0")
    assert (there.dtype, there.shape, there.stride()) == (here.dtype, here.shape, here.stride())
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("name", [*FACTORIES, "parameter"])
def test_printed_as_on_the_cpu(name: str) -> None:
    if name == "parameter":
        made = torch.nn.Parameter(torch.ones(2, device="neuron"))
        assert repr(made) == "Parameter containing:\ntensor([1., 1.], device='neuron:0', requires_grad=True)"
        return
    torch.manual_seed(3)
    here = repr(FACTORIES[name]("cpu"))
    torch.manual_seed(3)
    there = repr(FACTORIES[name]("neuron"))
    assert "device='neuron:0'" in there
    # Lines break elsewhere where the device takes room.
    plain = there.replace("device='neuron:0'", "").replace(" ", "").replace("\n", "")
    assert plain.replace(",,", ",").replace(",)", ")") == here.replace(" ", "").replace("\n", "")


def test_what_is_read_on_the_host() -> None:
    x = torch.tensor([1.5], device="neuron")
    assert (x.item(), float(x), int(x), bool(x), x.tolist()) == (1.5, 1.5, 1, True, [1.5])
    assert f"{x[0]:.2f}" == "1.50"
    with pytest.raises(TypeError, match="neuron:0 device type tensor to numpy"):
        x.numpy()
