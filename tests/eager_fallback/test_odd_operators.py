"""Operators that take other ways than most: sizes of results from values, lists, histograms, transforms, nesting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

X = torch.tensor([[3.0, -1.0, 0.0, 2.0], [0.0, 5.0, -2.0, 2.0]])
I = torch.tensor([[2, 0, 1, 2], [1, 1, 3, 0]])  # noqa: E741

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "nonzero": lambda x, i: x.nonzero(),
    "masked_select": lambda x, i: x.masked_select(x > 0),
    "unique": lambda x, i: torch.unique(x, return_inverse=True, return_counts=True),
    "topk": lambda x, i: x.topk(2),
    "kthvalue": lambda x, i: x.kthvalue(2),
    "sort": lambda x, i: x.sort(stable=True),
    "searchsorted": lambda x, i: torch.searchsorted(x.sort().values, x),
    "bincount": lambda x, i: torch.bincount(i.flatten(), minlength=6),
    "histc": lambda x, i: torch.histc(x, 4),
    "scatter": lambda x, i: torch.zeros_like(x).scatter_add(1, i, x),
    "scatter_reduce": lambda x, i: torch.zeros_like(x).scatter_reduce(1, i, x, "amax", include_self=False),
    "gather": lambda x, i: x.gather(1, i),
    "index_put": lambda x, i: x.clone().index_put_((i[0] % 2, i[1]), x[0], accumulate=True),
    "index_add": lambda x, i: x.index_add(1, i[0], x),
    "take_along": lambda x, i: torch.take_along_dim(x, i, 1),
    "cumulative": lambda x, i: (x.cumsum(1), x.logcumsumexp(0), *x.cummax(1)),
    "fft": lambda x, i: torch.fft.rfft(x),
    "ifft": lambda x, i: torch.fft.irfft(torch.fft.rfft(x)),
    "stft": lambda x, i: torch.stft(
        x[0].repeat(8), 8, return_complex=True, window=torch.hann_window(8, device=x.device)
    ),
    "conjugate in place": lambda x, i: torch.complex(x, x).conj_physical_(),
    "complex": lambda x, i: torch.complex(x, x).abs(),
    "einsum": lambda x, i: torch.einsum("ij,kj->ik", x, x),
    "baddbmm": lambda x, i: torch.baddbmm(x[None], x[None, :, :2], x[None, :2]),
    "grid_sample": lambda x, i: torch.nn.functional.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2, device=x.device), align_corners=False
    ),
    "interpolate": lambda x, i: torch.nn.functional.interpolate(x[None], size=7, mode="linear"),
    "unfold": lambda x, i: torch.nn.functional.unfold(x[None, None], (2, 2)),
    "pad": lambda x, i: torch.nn.functional.pad(x, (1, 2), mode="reflect"),
    "one_hot": lambda x, i: torch.nn.functional.one_hot(i),
    "cdist": lambda x, i: torch.cdist(x, x),
    "roll": lambda x, i: x.roll((1, 2), (0, 1)),
    "split": lambda x, i: x.split([1, 3], 1),
    "meshgrid": lambda x, i: torch.meshgrid(x[0], x[1], indexing="ij"),
    "cat": lambda x, i: torch.cat([x, i], 1),
    "where": lambda x, i: torch.where(x > 0, x, 0.0),
    "foreach": lambda x, i: torch._foreach_add([x, x[0]], [x, x[1]], alpha=2),
    "bitwise": lambda x, i: (i << 1) ^ i,
    "quantile": lambda x, i: x.quantile(0.3, 1),
    "svd": lambda x, i: torch.linalg.svdvals(x),
    "solve": lambda x, i: torch.linalg.solve(x[:, :2], x),
    "norm": lambda x, i: torch.linalg.vector_norm(x, 3, 1),
    "renorm": lambda x, i: x.renorm(2, 0, 1.0),
    "repeat_interleave": lambda x, i: x.repeat_interleave(torch.tensor([1, 2], device=x.device), 0),
    "tril": lambda x, i: x.tril().triu(-1),
    "bucketize": lambda x, i: torch.bucketize(x, x[0].sort().values),
    "ctc_loss": lambda x, i: torch.nn.functional.ctc_loss(
        x[:, None].log_softmax(-1), i[:1, 1:2] + 1, torch.tensor([2]), torch.tensor([1])
    ),
    "float8": lambda x, i: x.to(torch.float8_e4m3fn).float(),
    "bytes": lambda x, i: x.view(torch.int32),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_as_on_the_cpu(name: str) -> None:
    here = OPERATORS[name](X, I)
    there = OPERATORS[name](X.to("neuron"), I.to("neuron"))
    tensors = there if isinstance(there, tuple | list) else (there,)
    assert all(t.device.type == "neuron" for t in tensors)
    torch.testing.assert_close(
        [t.cpu() for t in tensors], list(here) if isinstance(here, tuple | list) else [here], rtol=0, atol=0
    )


def test_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, device="neuron")
    assert [(t.device.type, t.shape[0]) for t in (nested * 2).unbind()] == [("neuron", 2), ("neuron", 4)]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_other_layouts_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="device neuron holds dense and sparse tensors; .* layout Mkldnn"):
        torch.eye(3, device="neuron").to_mkldnn()
    with pytest.raises(NotImplementedError, match="device neuron holds dense and sparse tensors; .* dtype c10::quint8"):
        torch.quantize_per_tensor(torch.ones(2, device="neuron"), 0.1, 0, torch.quint8)


def test_narrow_copy_tells_the_errors_of_all_devices_but_the_cpu() -> None:
    x = torch.arange(6.0, device="neuron").view(2, 3)
    assert torch.narrow_copy(x, 1, 1, 2).tolist() == [[1, 2], [4, 5]]
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.narrow_copy(x, 2, 0, 1)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_arrays_are_made_of_host_tensors_alone() -> None:
    x = torch.arange(3.0, device="neuron")
    for use in (np.asarray, np.array, torch.Tensor.numpy, lambda x: x + np.ones(3), memoryview):
        with pytest.raises(TypeError, match=r"can't convert neuron:0 device type tensor to numpy|bytes-like"):
            use(x)
    assert x.numpy(force=True).tolist() == np.asarray(x.cpu()).tolist() == [0, 1, 2]
    with pytest.raises(AttributeError, match="__cuda_array_interface__"):
        x.__cuda_array_interface__  # noqa: B018
    with pytest.raises(RuntimeError, match="Unsupported device"):
        np.from_dlpack(x)


def test_dlpack_shares_the_memory() -> None:
    x = torch.arange(6.0, device="neuron").view(2, 3).t()
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    made = torch.from_dlpack(x)
    assert (made.device, made.stride(), made.data_ptr()) == (x.device, (1, 3), x.data_ptr())
    x.add_(1)
    expected = [[1, 4], [2, 5], [3, 6]]
    del x
    assert made.tolist() == expected
    made.requires_grad_().square().sum().backward()
    assert made.grad.tolist() == [[2, 8], [4, 10], [6, 12]]
    copied = torch.from_dlpack(made.detach(), copy=True)
    assert (copied.device, copied.tolist()) == (made.device, expected)
    assert copied.data_ptr() != made.data_ptr()
    assert torch.from_dlpack(made.detach(), device="cpu").tolist() == expected
    assert torch.from_dlpack(torch.ones(2), device="neuron").is_neuron
    capsule = torch.utils.dlpack.to_dlpack(made.detach())
    assert torch.utils.dlpack.from_dlpack(capsule).data_ptr() == made.data_ptr()
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(made)
    assert torch.ones(1).__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)


def test_a_compiled_call_takes_memory_that_came_by_dlpack() -> None:
    x = torch.from_dlpack(torch.ones(4, device="neuron"))
    run = torch.compile(lambda x: x.mul_(3) + 1, backend="neuron")
    assert run(x).tolist() == [4] * 4
    assert x.tolist() == [3] * 4


def test_dlpack_of_values_that_wait() -> None:
    x = torch.ones(4, device="neuron")
    with torch.neuron.eager_mode("fused"):
        y = x + 1
        made = torch.from_dlpack(y)
        assert made.cpu().tolist() == [2] * 4
