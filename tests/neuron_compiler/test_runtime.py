"""Layouts, results as PyTorch recorded them, interrupted compiles, forked processes."""

import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from neuron_compiler.runtime import Layout

DENSE = {
    "row_major": torch.zeros(2, 3),
    "transposed": torch.zeros(2, 3).t(),
    "channels_last": torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels_last_one_image": torch.zeros(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "unit_dimension_moved": torch.zeros(5, 1, 3).transpose(0, 1),
    "scalar": torch.zeros(()),
    "empty": torch.zeros(2, 0, 3),
}
OTHER = {
    "empty_transposed": torch.zeros(2, 0, 3).transpose(0, 2),
    "expanded": torch.zeros(3, 1).expand(3, 4),
    "expanded_twice": torch.zeros(1, 3, 1).expand(2, 3, 4),
    "sliced": torch.zeros(4, 6)[:, ::2],
    "unfolded": torch.zeros(7).unfold(0, 3, 2),
    "expanded_scalar": torch.zeros(()).expand(2, 2),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_tensor_is_taken_and_given_in_its_own_layout(name):
    like = DENSE[name]
    layout = Layout.of(like.shape, like.stride())
    values = torch.arange(like.numel(), dtype=torch.float32)
    tensor = torch.empty_strided(like.shape, like.stride())
    tensor.copy_(values.reshape(like.shape))

    physical = layout.physical(tensor)
    assert layout.dense
    assert physical.is_contiguous()
    assert physical.data_ptr() == tensor.data_ptr()
    back = layout.logical(physical)
    assert back.stride() == like.stride()
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("name", OTHER)
def test_a_tensor_with_gaps_or_repeats_is_laid_out_again(name):
    like = OTHER[name]
    layout = Layout.of(like.shape, like.stride())
    assert not layout.dense
    memory = torch.arange(like.untyped_storage().nbytes() // 4, dtype=torch.float32)
    tensor = memory.as_strided(like.shape, like.stride())
    result = layout.logical(layout.physical(tensor).clone())
    assert result.stride() == like.stride()
    assert torch.equal(result, tensor)


def test_a_tensor_that_lies_otherwise_than_recorded_is_copied():
    layout = Layout.of((2, 3), (3, 1))
    tensor = torch.arange(6.0).reshape(3, 2).t()
    assert torch.equal(layout.physical(tensor), tensor)
    assert layout.physical(tensor).is_contiguous()


def test_conjugated_and_negated_tensors_are_resolved():
    layout = Layout.of((2,), (1,))
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(layout.physical(z.conj()), torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(layout.physical(z.conj().imag), torch.tensor([-2.0, 4.0]))


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_forked_child_gets_an_error_instead_of_a_hang():
    done = _run(
        """
        import os, torch
        from neuron_compiler.capture import neuron
        f = torch.compile(lambda x: x + 1, backend=neuron)
        f(torch.ones(3))
        child = os.fork()
        if child == 0:
            try:
                f(torch.ones(3))
            except Exception as error:
                print(type(error).__name__, str(error).splitlines()[0], flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(f(torch.ones(3)).tolist())
        """
    )
    assert "RuntimeFault" in done.stdout, done.stderr
    assert "forked" in done.stdout
    assert "[2.0, 2.0, 2.0]" in done.stdout


def test_data_loader_workers_print_no_warning():
    done = _run(
        """
        import torch, warnings
        from neuron_compiler.capture import neuron
        f = torch.compile(lambda x: x + 1, backend=neuron)
        f(torch.ones(3))
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        print(sum(f(batch).sum().item() for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)))
        """
    )
    assert done.stdout.strip() == "36.0", done.stderr
    assert "fork" not in done.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_interrupting_a_compile_returns_at_once():
    done = _run(
        """
        import signal, time
        from neuron_compiler import interop, runtime
        interop.compile_module = lambda bytecode: time.sleep(60)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        started = time.monotonic()
        try:
            runtime.compile_interruptibly(b"")
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - started < 10)
        """
    )
    assert done.stdout.strip() == "interrupted True", done.stderr
    assert done.returncode == 0


def test_an_error_of_the_compiler_reaches_the_caller():
    from neuron_compiler import runtime

    with pytest.raises(Exception, match=r"(?i)mlir|parse|bytecode|module"):
        runtime.compile_interruptibly(b"not a module")
