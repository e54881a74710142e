"""Handing tensors over without a copy, by the private and by the public way."""

import subprocess
import sys
import textwrap

import pytest
import torch

from neuron_compiler import dtypes, interop

TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(3.5),
    torch.zeros(0, 4),
    torch.tensor([True, False]),
    torch.tensor([2**40, -1]),
    torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    torch.tensor([1.5, float("inf")], dtype=torch.float16),
    torch.tensor([1e300, -0.0], dtype=torch.float64),
    torch.tensor([1 + 2j, 3 - 4j]),
    torch.tensor([1 + 2j], dtype=torch.complex128),
    torch.tensor([1, 255], dtype=torch.uint8),
    torch.tensor([1, 65535], dtype=torch.uint16),
    torch.tensor([1.0, 240.0]).to(torch.float8_e4m3fn),
    torch.tensor([1.0, 3.0]).to(torch.float8_e5m2),
]


def _bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_a_tensor_survives_the_way_there_and_back(tensor, public, monkeypatch):
    monkeypatch.setattr(interop, "PUBLIC", public)
    array = interop.to_array(tensor)
    assert dtypes.from_numpy(array.dtype) is dtypes.from_torch(tensor.dtype)
    assert tuple(array.shape) == tuple(tensor.shape)
    back = interop.to_tensor(array)
    assert back.dtype is tensor.dtype
    assert back.shape == tensor.shape
    assert _bytes(back) == _bytes(tensor)


@pytest.mark.parametrize("public", [False, True])
def test_whole_tensors_share_memory(public, monkeypatch):
    monkeypatch.setattr(interop, "PUBLIC", public)
    tensor = torch.zeros(64)
    array = interop.to_array(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert interop.to_tensor(array).data_ptr() == tensor.data_ptr()


def test_a_misaligned_tensor_is_copied_with_the_right_values():
    tensor = torch.arange(65.0)[1:]
    array = interop.to_array(tensor)
    assert array.unsafe_buffer_pointer() != tensor.data_ptr()
    assert torch.equal(interop.to_tensor(array), tensor)


def test_a_parameter_is_taken_without_detaching():
    parameter = torch.nn.Parameter(torch.ones(8))
    assert interop.to_array(parameter).unsafe_buffer_pointer() == parameter.data_ptr()


def test_the_array_keeps_the_tensors_memory_alive():
    array = interop.to_array(torch.full((1000,), 7.0))
    torch.full((1000,), 1.0)
    assert interop.to_tensor(array).unique().tolist() == [7.0]


def test_the_process_keeps_its_own_jax_and_threads_follow_torch():
    script = """
        import os, torch
        torch.set_num_threads(2)
        import jax, jax.numpy as jnp
        from neuron_compiler.capture import neuron
        before = {name: getattr(jax.config, name) for name in dir(jax.config) if name.startswith("jax_")}
        environment = dict(os.environ)
        f = torch.compile(lambda x: x.long() * 2**40 + 1, backend=neuron)
        assert f(torch.ones(2)).tolist() == [2**40 + 1] * 2
        from jax._src import xla_bridge
        assert not xla_bridge._backends, "the default jax backend was started"
        assert before == {name: getattr(jax.config, name) for name in before}
        assert dict(os.environ) == environment
        names = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
        assert names.count("tf_XLAEigen") == 2, names
        assert jnp.arange(3).dtype == jnp.int32
        assert jnp.ones(2).sum() == 2
        assert f(torch.ones(2)).tolist() == [2**40 + 1] * 2
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "ok", done.stderr
