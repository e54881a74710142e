"""Writing kernels in Python, a statement a line, in the manner of NKI.

::

    k = KernelBuilder("matmul", "trn2")
    x, w = k.input("x", DType.BF16, (256, 128)), k.input("w", DType.BF16, (128, 512))
    y = k.output("y", DType.F32, (256, 512))
    ws = k.sbuf("ws", DType.BF16, (128, 512))
    k.dma_copy(ws, w)
    with k.loop("i", 2) as i:
        xs, acc = k.sbuf("xs", DType.BF16, (128, 128), copies=2), k.psum("acc", DType.F32, (128, 512), copies=2)
        k.dma_copy(xs, x.permuted(1, 0)[:, ds(128 * i, 128)])
        k.nc_matmul(acc, xs, ws)
        ys = k.sbuf("ys", DType.F32, (128, 512), copies=2)
        k.tensor_copy(ys, acc)
        k.dma_copy(y[ds(128 * i, 128), :], ys)
    kernel = k.build()

Each instruction of ``trainium/isa.py`` is a method: what it writes, what it reads, its attributes by name; ``engine=``
chooses where several can execute it. ``build`` verifies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

from neuron_compiler.errors import VerifyError
from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.ir.kernel import (
    Access,
    Affine,
    Attr,
    Buffer,
    Engine,
    Instruction,
    Kernel,
    Loop,
    Slice,
    Statement,
    affine,
    row_major,
)
from neuron_compiler.ir.plan import Space
from neuron_compiler.trainium import isa, kernel_checks

Index: TypeAlias = "int | Affine | slice | Slice | EllipsisType"


def ds(start: Affine | int, size: int, step: int = 1) -> Slice:
    """``size`` places from ``start``, ``step`` apart."""
    return Slice(affine(start), size, step)


@dataclass(frozen=True)
class Ref:
    """A buffer under construction; indexed like an array it gives the access, alone it stands for all of it."""

    builder: KernelBuilder
    buffer: Buffer

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Access:
        return _access(self.buffer, index if isinstance(index, tuple) else (index,))

    def viewed(
        self, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0, dtype: DType | None = None
    ) -> Ref:
        """In HBM: the same memory with other extents, strides and start, in elements of ``dtype``."""
        return self.builder.view(self, shape, strides, start, dtype)

    def permuted(self, *axes: int) -> Ref:
        """In HBM: dimensions in another order."""
        shape, strides = self.buffer.shape, self.buffer.strides or row_major(self.buffer.shape)
        return self.viewed(tuple(shape[a] for a in axes), tuple(strides[a] for a in axes), self.buffer.start)

    def reshaped(self, *shape: int) -> Ref:
        """In HBM: a dense buffer with other extents."""
        return self.viewed(shape, row_major(shape), self.buffer.start)


class KernelBuilder:
    """Collects buffers and statements; see the module."""

    def __init__(self, name: str, target: str = "trn2") -> None:
        self.name, self.target = name, target
        self._buffers: list[Buffer] = []
        self._roles: dict[str, list[str]] = {"input": [], "output": []}
        self._bodies: list[list[Statement]] = [[]]
        self._names: set[str] = set()
        self._ops: tuple[str, ...] = ()

    # Buffers

    def input(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Ref:
        return self._in_hbm(name, dtype, shape, "input")

    def output(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Ref:
        return self._in_hbm(name, dtype, shape, "output")

    def hbm(self, name: str, dtype: DType, shape: tuple[int, ...]) -> Ref:
        """Memory between: neither given nor returned."""
        return self._in_hbm(name, dtype, shape, None)

    def view(
        self, of: Ref, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0, dtype: DType | None = None
    ) -> Ref:
        """A view of a buffer in HBM, of the whole where that is a view itself; the same view twice is one buffer."""
        base = of.buffer.of or of.buffer.name
        type_ = TensorType(tuple(shape), dtype or of.buffer.dtype)
        for known in self._buffers:
            if (known.of, known.type, known.strides, known.start) == (base, type_, tuple(strides), start):
                return Ref(self, known)
        made = Buffer(self._fresh(f"{base}.v"), Space.HBM, type_, base, tuple(strides), start)
        self._buffers.append(made)
        return Ref(self, made)

    def sbuf(self, name: str, dtype: DType, shape: tuple[int, ...], copies: int = 1) -> Ref:
        """Memory in SBUF, until the loop that is open ends."""
        return self._on_chip(Space.SBUF, name, dtype, shape, copies)

    def psum(self, name: str, dtype: DType, shape: tuple[int, ...], copies: int = 1) -> Ref:
        """Memory in PSUM, until the loop that is open ends."""
        return self._on_chip(Space.PSUM, name, dtype, shape, copies)

    def _in_hbm(self, name: str, dtype: DType, shape: tuple[int, ...], role: str | None) -> Ref:
        made = Buffer(self._fresh(name), Space.HBM, TensorType(tuple(shape), dtype))
        self._buffers.append(made)
        if role is not None:
            self._roles[role].append(made.name)
        return Ref(self, made)

    def _on_chip(self, space: Space, name: str, dtype: DType, shape: tuple[int, ...], copies: int) -> Ref:
        made = Buffer(self._fresh(name), space, TensorType(tuple(shape), dtype), copies=copies)
        self._bodies[-1].append(made)
        return Ref(self, made)

    def _fresh(self, name: str) -> str:
        found, n = name, 1
        while found in self._names:
            n += 1
            found = f"{name}.{n}"
        self._names.add(found)
        return found

    # Statements

    @contextmanager
    def loop(self, variable: str, count: int | Affine, *, sequential: bool = False) -> Iterator[Affine]:
        """Statements of the block run ``count`` times; gives the loop variable."""
        name = self._fresh(variable)
        self._bodies.append([])
        yield Affine(0, ((name, 1),))
        body = tuple(self._bodies.pop())
        if body:
            self._bodies[-1].append(Loop(name, affine(count), body, sequential))

    @contextmanager
    def computing(self, *ops: str) -> Iterator[None]:
        """Instructions of the block compute these ops of the Graph."""
        before, self._ops = self._ops, ops
        yield
        self._ops = before

    def __getattr__(self, opcode: str) -> Any:
        spec = isa.SPECS.get(opcode)
        if spec is None:
            raise AttributeError(f"{opcode} is no instruction and no method of KernelBuilder")

        def emit(*operands: Any, engine: Engine | None = None, also: Any = None, **attrs: Attr) -> None:
            given = [_whole(o) for o in operands]
            dst = [given[0], *([] if also is None else [_whole(also)])]
            sorted_attrs = tuple(sorted((name, _plain(found)) for name, found in attrs.items()))
            self.emit(Instruction(opcode, engine or spec.engines[0], tuple(dst), tuple(given[1:]), sorted_attrs))

        return emit

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction as it is."""
        if self._ops and not instruction.ops:
            instruction = Instruction(
                instruction.opcode,
                instruction.engine,
                instruction.dst,
                instruction.src,
                instruction.attrs,
                self._ops,
            )
        self._bodies[-1].append(instruction)

    def build(self, *, verify: bool = True) -> Kernel:
        """The kernel; raises VerifyError where it cannot run."""
        if len(self._bodies) != 1:
            raise VerifyError(f"kernel {self.name} is built while a loop is open", hint="call build after the block")
        inputs, outputs = (tuple(self._roles[role]) for role in ("input", "output"))
        kernel = Kernel(self.name, tuple(self._buffers), inputs, outputs, tuple(self._bodies[0]), self.target)
        if verify:
            kernel_checks.verify(kernel, when="build")
        return kernel


def _plain(found: Attr) -> Attr:
    return found.constant if isinstance(found, Affine) and not found.terms else found


def _whole(operand: Any) -> Any:
    return operand[...] if isinstance(operand, Ref) else operand


def _access(buffer: Buffer, index: tuple[Index, ...]) -> Access:
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (len(buffer.shape) - len(index) + 1), *index[at + 1 :])
    index = (*index, *[slice(None)] * (len(buffer.shape) - len(index)))
    if len(index) > len(buffer.shape):
        raise IndexError(f"%{buffer.name} has {len(buffer.shape)} dimensions and {len(index)} indices")
    return Access(buffer.name, tuple(map(_slice, index, buffer.shape)))


def _slice(index: Any, extent: int) -> Slice:
    if isinstance(index, Slice):
        return index
    if isinstance(index, slice):
        start, stop, step = index.indices(extent)
        return Slice(Affine(start), len(range(start, stop, step)), step)
    return Slice(affine(index), 1)
