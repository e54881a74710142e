"""What a kernel must hold to run on a machine: one named check each, before anything is executed or timed.

In: a kernel. Out: nothing, or a VerifyError that shows the statement and says what is wrong. The checks rely on those
before them: names and shapes first, then each instruction by itself, then memory, then the order of reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NoReturn

from neuron_compiler.errors import VerifyError
from neuron_compiler.ir import kernel_text
from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import (
    Access,
    Affine,
    Attr,
    Buffer,
    Engine,
    Instruction,
    Kernel,
    Loop,
    Operand,
    Statement,
    all_buffers,
    bounds,
    statements,
)
from neuron_compiler.ir.plan import Space
from neuron_compiler.trainium import isa, kernel_flow, kernel_memory
from neuron_compiler.trainium.target import Target, by_name

WIDE = (DType.I64, DType.U64, DType.F64, DType.C64, DType.C128)
"""Types that no engine has. They lie in HBM, and a view of their low halves is what DMA moves."""


@dataclass(frozen=True)
class Site:
    """An instruction at its place.

    Attributes:
        instruction: what is checked.
        loops: those around it, the outermost first.
        buffers: all of the kernel, by name.
        target: the machine.
    """

    instruction: Instruction
    loops: tuple[Loop, ...]
    buffers: Mapping[str, Buffer]
    target: Target

    @cached_property
    def call(self) -> isa.Call:
        return isa.call_of(self.instruction, self.buffers)

    @property
    def spec(self) -> isa.Spec:
        return isa.SPECS[self.instruction.opcode]

    def parts(self) -> Iterator[tuple[isa.Param, isa.Part]]:
        """The accesses with the record of their place."""
        params, parts = (*self.spec.dst, *self.spec.src), (*self.call.dst, *self.call.src)
        if len(self.call.dst) < len(self.spec.dst):
            params = (*self.spec.dst[: len(self.call.dst)], *self.spec.src)
        yield from ((param, part) for param, part in zip(params, parts, strict=False) if part is not None)

    def bad(self, what: str) -> NoReturn:
        shapes = {name: b.shape for name, b in self.buffers.items()}
        raise VerifyError(what, op=kernel_text.format_instruction(self.instruction, shapes))

    def known(self, index: Affine) -> None:
        """An index names variables of loops around it alone."""
        for name, _ in index.terms:
            if name not in (loop.variable for loop in self.loops):
                self.bad(f"{name} is no variable of a loop around it")


def verify(kernel: Kernel, *, when: str = "") -> None:
    """Check everything; raises VerifyError for the first that does not hold.

    Args:
        kernel: what to check, against the machine that it names.
        when: the stage that made it, for the message.
    """
    target = by_name(kernel.target)
    try:
        for check in KERNEL_CHECKS:
            check(kernel)
        for site in _sites(kernel, target):
            for instruction_check in INSTRUCTION_CHECKS:
                instruction_check(site)
        kernel_memory.check(kernel, target)
        kernel_flow.check(kernel)
    except VerifyError as error:
        if not when:
            raise
        raise VerifyError(error.what, op=error.op, loc=error.loc, when=when, hint=error.hint) from None


# The kernel


def buffers_are_declared_once(kernel: Kernel) -> None:
    """Names are declared once; those in HBM before the body, with extents from 0, those on chip in it, from 1."""
    seen: set[str] = set()
    for buffer in (*kernel.buffers, *(s for s in statements(kernel.body) if isinstance(s, Buffer))):
        in_hbm = buffer.space is Space.HBM
        if buffer.name in seen:
            _bad(f"%{buffer.name} is declared twice", buffer)
        seen.add(buffer.name)
        if in_hbm != (buffer in kernel.buffers):
            _bad(f"%{buffer.name} is declared in another place than buffers of {buffer.space.value} are", buffer)
        if in_hbm and (buffer.copies != 1 or buffer.address is not None or buffer.partition):
            _bad(f"%{buffer.name} in HBM has a place or copies, which only buffers on chip have", buffer)
        if not in_hbm and (buffer.of is not None or buffer.start or buffer.strides is not None):
            _bad(f"%{buffer.name} on chip is a view, which only buffers in HBM are", buffer)
        if any(extent < (0 if in_hbm else 1) for extent in buffer.shape) or (not in_hbm and len(buffer.shape) < 2):
            _bad(f"%{buffer.name} has the extents {list(buffer.shape)}", buffer)
        if buffer.copies < 1:
            _bad(f"%{buffer.name} has {buffer.copies} copies", buffer)


def views_lie_inside(kernel: Kernel) -> None:
    """A view is of a buffer declared before it, and none of its elements lies outside of that."""
    before: dict[str, Buffer] = {}
    for buffer in kernel.buffers:
        if buffer.of is not None:
            if (base := before.get(buffer.of)) is None:
                _bad(f"%{buffer.name} is a view of %{buffer.of}, which is not declared before it", buffer)
            if base.of is not None:
                _bad(f"%{buffer.name} is a view of the view %{base.name}; views are of buffers", buffer)
            if buffer.strides is None or len(buffer.strides) != len(buffer.shape):
                _bad(f"%{buffer.name} has not one stride for each of its extents", buffer)
            reach = [(extent - 1) * stride for extent, stride in zip(buffer.shape, buffer.strides, strict=True)]
            low, high = (buffer.start + sum(f(0, r) for r in reach) for f in (min, max))
            room = base.type.nbytes // buffer.dtype.itemsize
            if prod(buffer.shape) and not 0 <= low <= high < room:
                _bad(f"%{buffer.name} reaches from element {low} to {high} of %{base.name}, which has {room}", buffer)
        before[buffer.name] = buffer


def inputs_and_outputs_are_buffers(kernel: Kernel) -> None:
    """Inputs and outputs are dense buffers of HBM, each named once."""
    dense = {b.name for b in kernel.buffers if b.of is None}
    names = (*kernel.inputs, *kernel.outputs)
    for name in names:
        if name not in dense:
            _bad(f"%{name} is an input or output and no buffer of HBM")
        if names.count(name) > 1:
            _bad(f"%{name} is named twice among the inputs and outputs")


def loops_are_well_formed(kernel: Kernel) -> None:
    """Loop variables are not used twice in a nest, and counts depend on outer ones only."""

    def inside(body: tuple[Statement, ...], outer: tuple[Loop, ...]) -> None:
        for loop in body:
            if not isinstance(loop, Loop):
                continue
            line, names = f"for {loop.variable} in {loop.count}", [o.variable for o in outer]
            if loop.variable in names:
                _bad(f"{loop.variable} is the variable of an outer loop already", line=line)
            if foreign := [name for name, _ in loop.count.terms if name not in names]:
                _bad(f"{foreign[0]} is no variable of a loop around it", line=line)
            if (low := bounds(loop.count, outer)[0]) < 0:
                _bad(f"the count of the loop over {loop.variable} can be {low}", line=line)
            inside(loop.body, (*outer, loop))

    inside(kernel.body, ())


def buffers_are_in_scope(kernel: Kernel) -> None:
    """What is accessed is declared before, in the same loop or one around it."""

    def inside(body: tuple[Statement, ...], outer: frozenset[str]) -> None:
        scope = set(outer)
        for statement in body:
            if isinstance(statement, Buffer):
                scope.add(statement.name)
            elif isinstance(statement, Loop):
                inside(statement.body, frozenset(scope))
            else:
                for access in _accesses(statement):
                    if access.buffer not in scope:
                        _bad(f"%{access.buffer} is not declared before, here or in a loop around", statement)

    inside(kernel.body, frozenset(b.name for b in kernel.buffers))


# Instructions


def operands_fit_the_instruction(site: Site) -> None:
    """The opcode is known and executed by its engine; operands and attributes are those it takes."""
    i = site.instruction
    if (spec := isa.SPECS.get(i.opcode)) is None:
        site.bad(f"{i.opcode} is no instruction")
    if i.engine not in spec.engines:
        engines = ", ".join(e.value for e in spec.engines)
        site.bad(f"{i.engine.value} does not execute {i.opcode}; these do: {engines}")
    for what, params, given, optional in (
        ("results", spec.dst, i.dst, spec.optional_dst),
        ("operands", spec.src, i.src, spec.optional_src),
    ):
        if not len(params) - optional <= len(given) <= len(params):
            site.bad(f"{i.opcode} has {len(given)} {what} and takes {len(params)}")
        for param, operand in zip(params, given, strict=False):
            if not (param.tensor if isinstance(operand, Access) else param.number):
                site.bad(f"{param.name} of {i.opcode} cannot be {_shown(operand)}")


def attributes_fit_the_instruction(site: Site) -> None:
    """Attributes are known, sorted, of the right kind, and all there."""
    i, spec = site.instruction, site.spec
    names = [name for name, _ in i.attrs]
    if names != sorted(set(names)):
        site.bad(f"attributes {names} are not sorted or not distinct")
    for name, found in i.attrs:
        if name not in spec.attrs:
            site.bad(f"{i.opcode} has no attribute {name}; it has {', '.join(spec.attrs) or 'none'}")
        if not _fits(found, spec.attrs[name]):
            site.bad(f"attribute {name} of {i.opcode} cannot be {found!r}")
        for index in found if isinstance(found, tuple) else (found,):
            if isinstance(index, Affine):
                site.known(index)
    if missing := [name for name in spec.attrs if name not in spec.defaults and name not in names]:
        site.bad(f"{i.opcode} needs {', '.join(missing)}")


def accesses_lie_inside(site: Site) -> None:
    """Every slice of every iteration lies in its buffer."""
    for access in _accesses(site.instruction):
        buffer = site.buffers[access.buffer]
        if len(access.slices) != len(buffer.shape):
            site.bad(f"%{buffer.name} has {len(buffer.shape)} dimensions and {len(access.slices)} slices")
        for axis, (s, extent) in enumerate(zip(access.slices, buffer.shape, strict=True)):
            site.known(s.start)
            if s.size < 1 or s.step < 1:
                site.bad(f"dimension {axis} of %{buffer.name} is cut in {s.size} steps of {s.step}")
            low, high = bounds(s.start, site.loops)
            high += (s.size - 1) * s.step
            if low < 0 or high >= extent:
                site.bad(f"dimension {axis} of %{buffer.name} has {extent} places, and {low} to {high} are taken")


def parts_are_where_the_engine_reaches(site: Site) -> None:
    """Each operand lies in a space, has a type and begins at a partition that the instruction can reach."""
    opcode, target = site.instruction.opcode, site.target
    limits = {Space.SBUF: target.sbuf_access_elements_max, Space.PSUM: target.psum_access_elements_max}
    for param, part in site.parts():
        if part.space not in param.spaces:
            spaces = " or ".join(sorted(s.value for s in param.spaces))
            site.bad(f"{param.name} of {opcode} lies in {spaces}, not {part.space.value}")
        if part.space is Space.HBM:
            continue
        if part.space is Space.PSUM and site.instruction.engine is Engine.GPSIMD:
            site.bad("gpsimd does not reach PSUM")
        if part.dtype in WIDE:
            site.bad(f"no engine has {part.dtype.value}, which {part} is of")
        if param.column and part.access.free != 1:
            site.bad(f"{param.name} of {opcode} has one element in each partition; {part} has more")
        if part.access.free > (limit := limits[part.space]):
            site.bad(f"{part} has more than {limit} elements in a partition, the most that an access reaches")
        _begins_where_it_may(site, part)


def _begins_where_it_may(site: Site, part: isa.Part) -> None:
    first = part.access.slices[0]
    if first.step != 1:
        site.bad(f"{part} takes every {first.step}th partition; an access spans adjacent ones")
    if site.instruction.engine is Engine.DMA:
        return
    allowed = site.target.start_partitions(part.access.partitions)
    starts = first.start + part.buffer.partition
    step = allowed[1] if len(allowed) > 1 else site.target.num_partitions
    if starts.constant % step or any(factor % step for _, factor in starts.terms):
        may = ", ".join(map(str, allowed))
        site.bad(f"{part} begins at partition {starts}; {part.access.partitions} of them may begin at {may}")


def shapes_go_together(site: Site) -> None:
    """As the instruction's record says, and within the sizes that the machine takes."""
    for complaint in (*site.spec.shapes(site.call), *_limits(site.call, site.target)):
        site.bad(complaint)


def _limits(call: isa.Call, target: Target) -> Iterator[str]:
    opcode, engine = call.instruction.opcode, call.instruction.engine
    source = call.src[0] if call.src else None
    if source is None:
        return
    if opcode == "nc_matmul":
        yield from _matmul_limits(call, target)
    elif opcode == "nc_transpose":
        on_tensor = engine is Engine.TENSOR
        most = target.num_partitions if on_tensor else target.vector_transpose_max
        if max(source.access.partitions, source.access.free) > most:
            yield f"{source} is larger than {most} by {most}, the most that {engine.value} transposes"
        if on_tensor and (source.space is not Space.SBUF or call.dst[0].space is not Space.PSUM):
            yield f"tensor transposes from SBUF to PSUM, not from {source.space.value} to {call.dst[0].space.value}"
    elif opcode == "bn_stats" and source.access.free > target.bn_stats_free_max:
        yield f"{source} has more than {target.bn_stats_free_max} elements in a partition"
    elif opcode in ("max8", "nc_find_index8", "nc_match_replace8"):
        low, high = target.max8_free_min, target.max8_free_max
        if not low <= source.access.free <= high:
            yield f"{source} has not {low} to {high} elements in a partition"


def _matmul_limits(call: isa.Call, target: Target) -> Iterator[str]:
    stationary, moving = call.src
    if stationary is None or moving is None:
        return
    for part in (stationary, moving):
        if not part.dtype.is_floating:
            yield f"tensor multiplies floats; {part} is {part.dtype.value}"
    if (stationary.dtype is DType.F32) != (moving.dtype is DType.F32):
        yield f"{stationary} is {stationary.dtype.value} and {moving} is {moving.dtype.value}: fp32 goes with fp32"
    double = call.attr("performance_mode") == "double_row"
    if double and not all(part.dtype.itemsize == 1 for part in (stationary, moving)):
        yield f"double_row takes fp8; {stationary} is {stationary.dtype.value}, {moving} is {moving.dtype.value}"
    rows, columns = (part.access.free // (2 if double else 1) for part in (stationary, moving))
    if rows > target.stationary_free_max:
        yield f"{stationary} has {rows} columns; the array has {target.stationary_free_max}"
    if columns > target.moving_free_max:
        yield f"{moving} has {columns} columns; at most {target.moving_free_max} are streamed at once"
    if call.dst[0].dtype.value not in target.psum_dtypes_of_matmul:
        types = ", ".join(target.psum_dtypes_of_matmul)
        yield f"products are written as {types} on {target.name}; {call.dst[0]} is {call.dst[0].dtype.value}"


KERNEL_CHECKS: tuple[Callable[[Kernel], None], ...] = (
    buffers_are_declared_once,
    views_lie_inside,
    inputs_and_outputs_are_buffers,
    loops_are_well_formed,
    buffers_are_in_scope,
)
INSTRUCTION_CHECKS: tuple[Callable[[Site], None], ...] = (
    operands_fit_the_instruction,
    attributes_fit_the_instruction,
    accesses_lie_inside,
    parts_are_where_the_engine_reaches,
    shapes_go_together,
)


# What the checks share


def _sites(kernel: Kernel, target: Target) -> Iterator[Site]:
    """Every instruction that is executed at all."""
    buffers = all_buffers(kernel)

    def inside(body: tuple[Statement, ...], loops: tuple[Loop, ...]) -> Iterator[Site]:
        for statement in body:
            if isinstance(statement, Instruction):
                yield Site(statement, loops, buffers, target)
            elif isinstance(statement, Loop) and bounds(statement.count, loops)[1] > 0:
                yield from inside(statement.body, (*loops, statement))

    return inside(kernel.body, ())


def _accesses(instruction: Instruction) -> Iterator[Access]:
    yield from instruction.dst
    yield from (o for o in instruction.src if isinstance(o, Access))


def _fits(found: Attr, wanted: tuple[str, ...] | type) -> bool:
    if isinstance(wanted, tuple):
        return found in wanted
    if wanted is Affine:
        return isinstance(found, Affine | int)
    if wanted is int:
        return isinstance(found, int) and not isinstance(found, bool)
    return isinstance(found, wanted)


def _shown(operand: Operand) -> str:
    return f"%{operand.buffer}" if isinstance(operand, Access) else f"the number {operand}"


def _bad(what: str, statement: Instruction | Buffer | None = None, *, line: str = "") -> NoReturn:
    if isinstance(statement, Buffer):
        line = kernel_text.format_buffer(statement)
    elif statement is not None:
        line = kernel_text.format_instruction(statement, {})
    raise VerifyError(what, op=line)
