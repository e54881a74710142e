"""Executable: a compiled program bound to its arguments and results.

In: torch tensors as the graph was captured with them. Out: torch tensors of the recorded sizes and strides, on fresh
memory. Arguments and results are handed over without a copy. Threads may call one Executable at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neuron_compiler import interop

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory, and so how the executable takes or gives it.

    Attributes:
        size: logical sizes.
        stride: strides in elements, as PyTorch recorded them.
        order: logical dimensions in the order of memory, slowest first; None is row-major.
        dense: the memory order, without gaps, reproduces ``stride``. Where it does not (an expanded or a sliced
            result), the tensor is laid out again after the call.
        device: where a result goes, without a copy; an argument may lie on either device.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...] | None
    dense: bool
    device: torch.device = CPU

    @classmethod
    def of(cls, size: Sequence[int], stride: Sequence[int], device: torch.device = CPU) -> Layout:
        """The layout of a tensor with these sizes and strides."""
        sizes, strides = tuple(size), tuple(stride)
        # Ties (sizes of 1, expanded dimensions) keep the logical order, so that row-major stays row-major.
        order = tuple(sorted(range(len(sizes)), key=lambda d: (-strides[d], d)))
        if 0 in sizes:
            order = tuple(range(len(sizes)))
        expected, dense = 1, True
        for d in reversed(order):
            if sizes[d] != 1 and strides[d] != expected:
                dense = False
            expected *= max(sizes[d], 1)
        if 0 in sizes:
            dense = strides == tuple(torch.empty(sizes, device="meta").stride())
        if not dense or _is_row_major(sizes, order):
            return cls(sizes, strides, None, dense, device)
        return cls(sizes, strides, order, True, device)

    def physical(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's memory in row-major order, copied only if it does not lie as recorded."""
        if not tensor.is_cpu:
            tensor = torch.ops.neuron_compiler.as_cpu.default(tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if self.order is not None:
            tensor = tensor.permute(self.order)
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    def logical(self, physical: torch.Tensor) -> torch.Tensor:
        """A result as PyTorch recorded it: permuted back, or laid out again where it has gaps or repeats."""
        laid = self._laid(physical)
        return laid if self.device == CPU else torch.ops.neuron_compiler.from_cpu.default(laid, self.device.index)

    def _laid(self, physical: torch.Tensor) -> torch.Tensor:
        if self.dense and physical.dim() == len(self.size):
            if self.order is None and physical.stride() == self.stride:
                return physical
            return physical.as_strided(self.size, self.stride)
        # Device by name: the user may have set another default.
        laid = torch.empty_strided(self.size, self.stride, dtype=physical.dtype, device="cpu")
        if not _overlaps(self.size, self.stride):
            return laid.copy_(physical)
        # Several elements share a memory cell (expanded, unfolded): write by address, since copy_ refuses.
        cells = torch.arange(laid.untyped_storage().nbytes() // laid.element_size(), device="cpu")
        flat = laid.as_strided(cells.shape, (1,))
        flat[cells.as_strided(self.size, self.stride).reshape(-1)] = physical.reshape(-1)
        return laid


def _overlaps(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements may share a memory cell; True where it cannot be told cheaply."""
    reach = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size <= 1:
            continue
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _is_row_major(sizes: tuple[int, ...], order: tuple[int, ...]) -> bool:
    wide = [d for d in order if sizes[d] != 1]
    return wide == sorted(wide)


class Executable:
    """One XLA executable and the layouts of its arguments and results.

    Args:
        name: the graph's name.
        loaded: what ``interop.compile_module`` returned.
        inputs: layout of each argument, in order.
        outputs: layout of each result, in order.
        faults: (message, error type) of each run-time check.
    """

    def __init__(
        self,
        name: str,
        loaded: Any,
        inputs: Sequence[Layout],
        outputs: Sequence[Layout],
        faults: Sequence[tuple[str, type[Exception]]] = (),
    ) -> None:
        self.name = name
        self.loaded = loaded
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.faults = tuple(faults)

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on tensors in the order of the graph's inputs; raises what a failed run-time check asks for."""
        interop.client()  # refuses a forked process before XLA could hang in it
        to_array = interop.to_array
        arrays = [to_array(layout.physical(tensor)) for layout, tensor in zip(self.inputs, arguments, strict=True)]
        results = self.loaded.execute(arrays)
        if self.faults and (code := int(interop.to_tensor(results.pop()))):
            message, error = self.faults[code - 1]
            raise error(message)
        return [layout.logical(interop.to_tensor(result)) for layout, result in zip(self.outputs, results, strict=True)]


def compile_interruptibly(bytecode: bytes) -> Any:
    """Compile a module so that Ctrl-C returns at once: XLA works in a thread, and only the main thread is signalled."""
    if threading.current_thread() is not threading.main_thread():
        return interop.compile_module(bytecode)
    done = threading.Event()
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((interop.compile_module(bytecode), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.set()

    # A daemon, so that an abandoned compile cannot hold up the exit of the interpreter.
    threading.Thread(target=work, name="neuron-compile", daemon=True).start()
    while not done.wait(0.2):
        pass
    executable, error = outcome[0]
    if error is not None:
        raise error
    return executable
