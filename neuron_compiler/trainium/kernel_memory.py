"""Where a kernel's buffers lie in SBUF and PSUM, how long they live, and whether they fit.

A buffer lives from its declaration to its last use. What is used in a loop that does not declare it lives to the end of
that loop; what has several copies lives as long as the loop that declares it, since its iterations overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from neuron_compiler.errors import CapacityError, VerifyError
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.kernel import (
    Access,
    Affine,
    Buffer,
    Instruction,
    Kernel,
    Loop,
    Statement,
    all_buffers,
    bounds,
    statements,
)
from neuron_compiler.ir.plan import Space
from neuron_compiler.trainium.target import Target

MAX_PLACES = 4096
"""Places of an access that are tried one by one when looking for one that crosses a bank."""


@dataclass(frozen=True)
class Live:
    """A buffer on chip with the statements, counted in program order, between which it is needed; both included."""

    buffer: Buffer
    first: int
    last: int

    @property
    def bytes_per_partition(self) -> int:
        return self.buffer.bytes_per_partition * self.buffer.copies

    def meets(self, other: Live) -> bool:
        return self.first <= other.last and other.first <= self.last


def live_ranges(kernel: Kernel) -> tuple[Live, ...]:
    """Every buffer on chip, in the order of declaration."""
    buffers: dict[str, Buffer] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    position = 0

    def inside(body: tuple[Statement, ...]) -> None:
        nonlocal position
        begin, mine = position, []
        for statement in body:
            position += 1
            if isinstance(statement, Buffer):
                mine.append(statement)
                buffers[statement.name] = statement
                first[statement.name] = last[statement.name] = position
                continue
            outer = set(first)
            if isinstance(statement, Loop):
                inside(statement.body)
            last.update((name, position) for name in outer & _used((statement,)))
        position += 1
        several = [buffer.name for buffer in mine if buffer.copies > 1]
        first.update((name, begin) for name in several)
        last.update((name, position) for name in several)

    inside(kernel.body)
    return tuple(Live(buffer, first[name], last[name]) for name, buffer in buffers.items())


def peak_bytes_per_partition(kernel: Kernel, space: Space) -> int:
    """The most bytes of each partition that live buffers of a space take at once, copies counted."""
    live = [found for found in live_ranges(kernel) if found.buffer.space is space]
    return max((sum(o.bytes_per_partition for o in live if o.first <= at.first <= o.last) for at in live), default=0)


def check(kernel: Kernel, target: Target) -> None:
    """Buffers fit, no two live ones share a byte, and products stay in one bank of PSUM.

    Raises:
        CapacityError: more is needed than the machine has.
        VerifyError: two buffers overlap, or an access crosses a bank.
    """
    live = live_ranges(kernel)
    for found in live:
        _fits(found.buffer, target)
    for space, capacity in _capacities(target).items():
        needed = peak_bytes_per_partition(kernel, space)
        if needed > capacity:
            raise CapacityError(
                f"kernel {kernel.name} needs {needed} bytes of {space.value} per partition at once; "
                f"{target.name} has {capacity}",
                hint="smaller tiles, or fewer copies of them",
            )
    _none_overlap([found for found in live if found.buffer.address is not None])
    if target.moving_free_max * 4 <= target.psum_bank_bytes_per_partition:
        buffers = all_buffers(kernel)
        for instruction, loops in _products(kernel.body, ()):
            _in_one_bank(instruction, buffers[instruction.dst[0].buffer], loops, target)


def _capacities(target: Target) -> Mapping[Space, int]:
    return {Space.SBUF: target.sbuf_bytes_per_partition, Space.PSUM: target.psum_bytes_per_partition}


def _fits(buffer: Buffer, target: Target) -> None:
    line = kernel_text.format_buffer(buffer)
    if buffer.partition + buffer.shape[0] > target.num_partitions or buffer.partition < 0:
        raise VerifyError(f"%{buffer.name} spans more partitions than the {target.num_partitions} there are", op=line)
    if buffer.address is None:
        return
    end = buffer.address + buffer.bytes_per_partition * buffer.copies
    capacity = _capacities(target)[buffer.space]
    if buffer.address < 0 or end > capacity:
        raise VerifyError(f"%{buffer.name} lies in bytes {buffer.address} to {end} of {capacity}", op=line)


def _none_overlap(placed: list[Live]) -> None:
    for index, a in enumerate(placed):
        for b in placed[index + 1 :]:
            x, y = a.buffer, b.buffer
            if x.space is not y.space or not a.meets(b):
                continue
            bytes_meet = _meet(x.address or 0, a.bytes_per_partition, y.address or 0, b.bytes_per_partition)
            if bytes_meet and _meet(x.partition, x.shape[0], y.partition, y.shape[0]):
                raise VerifyError(
                    f"%{x.name} and %{y.name} are needed at once and share bytes of {x.space.value}",
                    op=kernel_text.format_buffer(y),
                )


def _meet(a: int, a_size: int, b: int, b_size: int) -> bool:
    return a < b + b_size and b < a + a_size


def _in_one_bank(instruction: Instruction, buffer: Buffer, loops: tuple[Loop, ...], target: Target) -> None:
    """A product is accumulated in one bank. A buffer without an address is taken to begin with one."""
    bank, item = target.psum_bank_bytes_per_partition, buffer.dtype.itemsize
    access = instruction.dst[0]
    start, span = Affine(buffer.address or 0), item
    for axis, s in enumerate(access.slices[1:], start=1):
        stride = prod(buffer.shape[axis + 1 :]) * item
        start += s.start * stride
        span += (s.size - 1) * s.step * stride
    around = [loop for loop in loops if start.factor(loop.variable) % bank]
    ranges = [range(bounds(loop.count, loops)[1]) for loop in around]
    if prod(map(len, ranges)) > MAX_PLACES:
        ranges = [range(min(len(r), 2)) for r in ranges]
    for values in product(*ranges):
        terms = zip((loop.variable for loop in around), values, strict=True)
        first = (start.constant + sum(start.factor(name) * number for name, number in terms)) % bank
        if first + span > bank:
            raise VerifyError(
                f"{span} bytes of %{buffer.name} from byte {first} of a bank of {bank} reach into the next",
                op=kernel_text.format_instruction(instruction, {}),
            )


def _products(body: tuple[Statement, ...], loops: tuple[Loop, ...]) -> Iterator[tuple[Instruction, tuple[Loop, ...]]]:
    for statement in body:
        if isinstance(statement, Loop):
            yield from _products(statement.body, (*loops, statement))
        elif isinstance(statement, Instruction) and statement.opcode == "nc_matmul":
            yield statement, loops


def _used(body: tuple[Statement, ...]) -> set[str]:
    """Names of the buffers that some statement reads or writes."""
    found: set[str] = set()
    for statement in statements(body):
        if isinstance(statement, Instruction):
            found.update(a.buffer for a in (*statement.dst, *statement.src) if isinstance(a, Access))
    return found
