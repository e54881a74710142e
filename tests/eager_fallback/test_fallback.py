"""The boxed kernel: values, aliasing, results that share memory, out=, generators, and errors as on CUDA."""

from __future__ import annotations

import pytest
import torch

ANY = torch.device("neuron:0")


def both(function, *arguments):
    """What a function gives on CPU and on the device, moved to the CPU."""
    here = function(*arguments)
    there = function(*(a.to("neuron") if isinstance(a, torch.Tensor) else a for a in arguments))
    assert there.device == ANY
    return here, there.cpu()


def test_values_are_the_cpus() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    for function in (torch.mm, lambda a, b: torch.softmax(a @ b, -1), lambda a, b: torch.cat([a.t(), b], 1)):
        here, there = both(function, a, b)
        assert torch.equal(here, there)


def test_in_place_returns_the_tensor_itself() -> None:
    x = torch.zeros(3, device="neuron")
    pointer = x.data_ptr()
    assert x.add_(1) is x
    assert x.data_ptr() == pointer
    assert x.tolist() == [1, 1, 1]


def test_views_share_memory_and_versions() -> None:
    x = torch.zeros(4, 6, device="neuron")
    for view in (x.view(24), x[1], x.t(), x.unfold(0, 2, 1), x.as_strided((2,), (1,)), x.reshape(2, 12), x.diagonal()):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view._base is x
    version = x._version
    x.view(24)[3] = 5
    assert (x._version, x[0, 3].item()) == (version + 1, 5)
    z = torch.view_as_complex(x.view(12, 2))
    expected = z.cpu().conj() * 1j
    z.conj().mul_(1j)  # written through a conjugated view
    assert torch.equal(z.cpu(), expected.conj().resolve_conj())


def test_out_is_resized_and_keeps_its_storage() -> None:
    x = torch.arange(6.0, device="neuron")
    out = torch.empty(0, device="neuron")
    storage = out.untyped_storage()
    assert torch.add(x, 1, out=out) is out
    assert out.tolist() == [1, 2, 3, 4, 5, 6]
    assert out.untyped_storage().data_ptr() == storage.data_ptr()
    assert storage.nbytes() == 24
    smaller = torch.empty(10, device="neuron")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, 1, out=smaller)
    assert smaller.tolist() == [1, 2, 3, 4, 5, 6]


def test_arguments_that_overlap_are_found() -> None:
    x = torch.arange(6.0, device="neuron")
    for write in (lambda: torch.add(x[:-1], 1, out=x[1:]), lambda: x[1:].mul_(x[:-1])):
        with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
            write()
    empty = torch.empty(0, device="neuron")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.cat([empty, x], out=empty)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        x[:1].expand(3).add_(1)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.add_(x).tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_error_leaves_tensors_in_order() -> None:
    x, out = torch.ones(3, 4, device="neuron"), torch.empty(0, device="neuron")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match"):
            torch.add(x, torch.ones(3, device="neuron"), out=out)
        with pytest.raises(IndexError, match="out of range"):
            torch.index_select(x, 0, torch.tensor([5], device="neuron"), out=out)
    assert torch.mul(x, 2, out=out).sum().item() == 24
    assert torch.index_select(x, 0, torch.tensor([2], device="neuron"), out=out).tolist() == [[1, 1, 1, 1]]


def test_results_on_the_same_memory_share_it() -> None:
    x = torch.arange(6.0, device="neuron").view(2, 3)
    first, second = x.unbind()
    assert second.data_ptr() == first.data_ptr() + 12
    values, indices = x.sort(descending=True)
    assert values.tolist() == [[2, 1, 0], [5, 4, 3]]
    assert indices.device == ANY


def test_mixed_devices_raise() -> None:
    x = torch.ones(3, device="neuron")
    for call in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3) * x,
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.add(x, 1, out=torch.empty(3)),
        lambda: torch.ones(3).add_(x),
        lambda: torch.nn.functional.linear(x, torch.ones(2, 3)),
        lambda: torch.nn.functional.conv1d(x.view(1, 1, 3), torch.ones(1, 1, 1)),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(3)[torch.tensor([0, 1], device="neuron")]


def test_scalars_and_indices_may_be_on_the_cpu() -> None:
    x = torch.arange(3.0, device="neuron")
    assert (x * torch.tensor(2.0)).tolist() == [0, 2, 4]
    assert (torch.tensor(2.0) - x).device == ANY
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    assert x[torch.tensor([True, False, True])].tolist() == [0, 2]
    x[torch.tensor([1])] = 9
    assert x.tolist() == [0, 9, 2]


def test_copies_cross_devices_and_types() -> None:
    x = torch.arange(4.0).to("neuron")
    assert x.to(torch.int32).tolist() == [0, 1, 2, 3]
    assert torch.empty(4, dtype=torch.int64).copy_(x).tolist() == [0, 1, 2, 3]
    assert torch.zeros(2, 4, device="neuron").copy_(torch.ones(4)).sum().item() == 8
    z = torch.tensor([1 + 2j]).to("neuron").conj()
    assert z.cpu().tolist() == [1 - 2j]
    assert z.clone().resolve_conj().tolist() == [1 - 2j]


def test_generators() -> None:
    torch.manual_seed(5)
    here = torch.randn(3)
    torch.manual_seed(5)
    there = torch.randn(3, device="neuron")
    assert torch.equal(here, there.cpu())
    generator = torch.Generator("neuron").manual_seed(5)
    assert torch.equal(torch.randn(3, device="neuron", generator=generator).cpu(), here)
    state = generator.get_state()
    drawn = torch.randperm(9, device="neuron", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.randperm(9, device="neuron", generator=generator), drawn)
    with torch.random.fork_rng(device_type="neuron"):
        torch.randn(7, device="neuron")
        inside = torch.get_rng_state()
    assert not torch.equal(torch.get_rng_state(), inside)


def test_dropout_is_the_cpus() -> None:
    x = torch.randn(64, 8).t()
    assert not x.is_contiguous()
    for p in (0.1, 0.5, 1.0):
        found = []
        for device in ("cpu", "neuron"):
            torch.manual_seed(1)
            given = x.to(device, copy=True).requires_grad_()
            result = torch.nn.functional.dropout(given, p)
            result.backward(torch.ones_like(result))
            found += [result.detach().cpu(), given.grad.cpu()]
        assert torch.equal(found[0], found[2])
        assert torch.equal(found[1], found[3])


def test_attention_takes_the_kernel_of_the_cpu() -> None:
    q, k, v = torch.randn(3, 2, 4, 8, 16).unbind()
    mask = torch.randn(8, 8)
    for options in ({"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask > 0}, {"scale": 0.3}):
        found = []
        for device in ("cpu", "neuron"):
            given = [t.to(device, copy=True).requires_grad_() for t in (q, k, v)]
            moved = {n: o.to(device) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
            result = torch.nn.functional.scaled_dot_product_attention(*given, **moved)
            result.sum().backward()
            found.append([result.detach().cpu(), *(t.grad.cpu() for t in given)])
        assert "Fused" in type(result.grad_fn).__name__
        for here, there in zip(*found, strict=True):
            torch.testing.assert_close(there, here, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers(kind: type[torch.nn.Module]) -> None:
    layer = kind(3, 5, num_layers=2, bidirectional=True)
    x = torch.randn(6, 2, 3)
    here = layer(x)[0]
    here.square().sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer.to("neuron")
    there = layer(x.to("neuron"))[0]
    there.square().sum().backward()
    torch.testing.assert_close(there.cpu(), here)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_is_the_cpus(transposed: bool) -> None:
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    layer = kind(4, 6, 3, stride=2, padding=1, groups=2)
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    here = layer(x)
    found = torch.autograd.grad(here.square().sum(), [x, *layer.parameters()])
    layer.to("neuron")
    moved = x.detach().to("neuron").requires_grad_()
    there = layer(moved)
    again = torch.autograd.grad(there.square().sum(), [moved, *layer.parameters()])
    assert torch.equal(there.cpu(), here)
    for one, other in zip(found, again, strict=True):
        assert torch.equal(other.cpu(), one)


def test_packed_sequences_keep_their_lengths_on_the_cpu() -> None:
    x = torch.randn(2, 4, 3, device="neuron")
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True)
    assert packed.batch_sizes.device.type == "cpu"
    unpacked, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert lengths.tolist() == [4, 2]
    assert torch.equal(unpacked[0], x[0])


def test_autocast() -> None:
    x, w = torch.randn(4, 4, device="neuron"), torch.randn(4, 4, device="neuron", requires_grad=True)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (x @ w).dtype == torch.bfloat16
        assert torch.nn.functional.linear(x, w).dtype == torch.bfloat16
        assert torch.softmax(x.bfloat16(), 0).dtype == torch.float32
        assert torch.softmax(x.bfloat16(), 0, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert (x.bfloat16().exp()).dtype == torch.float32
        assert torch.addcmul(x, x.bfloat16(), x.bfloat16()).dtype == torch.float32
        assert torch.dot(x[0].bfloat16(), x[1].bfloat16()).dtype == torch.bfloat16
        assert (x.double() @ x.double()).dtype == torch.float64
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(x.sigmoid(), x.sigmoid())
        with torch.autocast("neuron", enabled=False):
            assert (x @ w).dtype == torch.float32
    assert (x @ w).dtype == torch.float32


def test_an_operator_without_any_kernel_says_so() -> None:
    with pytest.raises(NotImplementedError, match="neuron"):
        torch.ops.aten._cudnn_rnn_flatten_weight([torch.ones(3, device="neuron")], 0, 3, 2, 3, 0, 1, False, False)


def test_operators_of_other_packages_run_on_the_cpu() -> None:
    with torch.library._scoped_library("for_this_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        kept = []
        library.impl("twice", lambda x: kept.append(x) or x * 2, "CPU")
        made = torch.ops.for_this_test.twice(torch.ones(3, device="neuron"))
        assert (made.device, made.tolist()) == (ANY, [2, 2, 2])
        # What the kernel kept is still memory.
        assert kept[0].device.type == "cpu"
        assert kept[0].tolist() == [1, 1, 1]
