"""The instructions of a NeuronCore: who executes each, what it reads and writes, and which shapes go together.

One ``Instruction`` record an opcode; names and meanings follow NKI's (public repository aws-neuron/aws-neuron-sdk,
nki/api/nki/isa). What an instruction computes is in ``trainium/execute/instructions.py``, what it may not do on a
certain machine in ``trainium/kernel_checks.py``. Every engine but TensorE computes in fp32, whatever the types of its
operands, and rounds what it stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Access, Affine, Attr, Buffer, Engine, Instruction
from neuron_compiler.ir.plan import Space

SBUF, PSUM, HBM = Space.SBUF, Space.PSUM, Space.HBM
ON_CHIP = frozenset({SBUF, PSUM})
COMPUTE = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)

COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
ALU_OPS = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "mod"),
    *("logical_and", "logical_or", "logical_xor"),
    *COMPARISONS,
    *BITWISE,
)
"""Operations of two operands, of ``tensor_tensor`` and its kin. Comparisons and logical ones give 1 or 0."""

REDUCTIONS = ("add", "multiply", "max", "min")
ACTIVATIONS = (
    *("copy", "abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "log", "sin", "arctan", "tanh"),
    *("sigmoid", "relu", "softplus", "silu", "silu_dx", "gelu", "gelu_dx", "gelu_apprx_tanh", "mish", "erf", "erf_dx"),
)
"""Functions of ScalarE's tables."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Part:
    """An access with the buffer that it goes to."""

    access: Access
    buffer: Buffer

    @property
    def space(self) -> Space:
        return self.buffer.space

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.access.shape

    @property
    def elements(self) -> int:
        return self.access.partitions * self.access.free if self.shape else 1

    def __str__(self) -> str:
        return f"%{self.access.buffer} of {list(self.shape)}"


@dataclass(frozen=True)
class Call:
    """An instruction with its parts; numbers among the operands are None in ``src``."""

    dst: tuple[Part, ...]
    src: tuple[Part | None, ...]
    instruction: Instruction

    def attr(self, name: str) -> Attr | None:
        return self.instruction.attr(name, SPECS[self.instruction.opcode].defaults.get(name))


@dataclass(frozen=True)
class Param:
    """What stands at one place: a tile, or one number a partition, or a number.

    Attributes:
        name: NKI's.
        spaces: where it may lie.
        tensor: it may be an access.
        number: it may be a number of the program.
        column: an access has one element in each partition.
    """

    name: str
    spaces: frozenset[Space] = ON_CHIP
    tensor: bool = True
    number: bool = False
    column: bool = False


@dataclass(frozen=True)
class Spec:
    """One instruction.

    Attributes:
        engines: who can execute it.
        dst: what it writes; the last ``optional_dst`` of them may be left out.
        src: what it reads; the last ``optional_src`` of them may be left out.
        attrs: the choices of each attribute: a tuple of words, or a type.
        defaults: of attributes that may be left out; the others must be given.
        shapes: what is wrong with the shapes of a call.
        updates: whether a call reads what it writes.
    """

    engines: tuple[Engine, ...]
    dst: tuple[Param, ...]
    src: tuple[Param, ...]
    attrs: Mapping[str, tuple[str, ...] | type] = field(default_factory=dict)
    defaults: Mapping[str, Attr] = field(default_factory=dict)
    shapes: Callable[[Call], Iterator[str]] = lambda call: iter(())
    updates: Callable[[Call], bool] = lambda call: False
    optional_dst: int = 0
    optional_src: int = 0


def accumulates(call: Call) -> bool:
    """Whether a call adds to what is there, in some iteration."""
    found = call.attr("accumulate")
    return bool(found.terms or found.constant) if isinstance(found, Affine) else bool(found)


# Shapes


def _tiles_agree(call: Call) -> Iterator[str]:
    """All tiles span the same partitions and have as many elements in each; columns span the same partitions."""
    spec, first = SPECS[call.instruction.opcode], call.dst[0]
    for param, part in zip((*spec.dst, *spec.src), (*call.dst, *call.src), strict=False):
        if part is None or part is first:
            continue
        if part.access.partitions != first.access.partitions:
            yield f"{part} and {first} span other partitions"
        elif (
            not param.column and not (param.number and part.access.free == 1) and part.access.free != first.access.free
        ):
            yield f"{part} and {first} have other numbers of elements in a partition"


def _matmul(call: Call) -> Iterator[str]:
    stationary, moving = call.src
    out = call.dst[0]
    if stationary is None or moving is None:
        return
    double = call.attr("performance_mode") == "double_row"
    if stationary.access.partitions != moving.access.partitions:
        yield f"{stationary} and {moving} are contracted over other partitions"
    for part in (stationary, moving):
        if double and (len(part.shape) != 3 or part.shape[1] != 2):
            yield f"{part} has no second extent of 2, which double_row contracts over"
    rows, columns = (part.access.free // (2 if double else 1) for part in (stationary, moving))
    if (out.access.partitions, out.access.free) != (rows, columns):
        yield f"{out} is not the {rows} rows by {columns} columns of {stationary} times {moving}"


def _transpose(call: Call) -> Iterator[str]:
    """What lies in a partition becomes partitions; by DMA, the last dimension does, all others are its columns."""
    source, out = call.src[0], call.dst[0]
    if source is None:
        return
    turned = source.shape[-1] if call.instruction.opcode == "dma_transpose" else source.access.free
    if out.access.partitions != turned or out.elements != source.elements:
        yield f"{out} is not {source} transposed"
    if source.dtype.itemsize != out.dtype.itemsize:
        yield f"a transpose does not convert: {source} is {source.dtype.value}, {out} is {out.dtype.value}"


def _reduce(call: Call) -> Iterator[str]:
    source, out = call.src[0], call.dst[0]
    if source is None:
        return
    if source.access.partitions != out.access.partitions:
        yield f"{source} and {out} span other partitions"
    elif not out.access.free or source.access.free % out.access.free:
        yield f"the elements of {source} cannot be folded into those of {out}"


def _same_elements(call: Call) -> Iterator[str]:
    source, out = call.src[0], call.dst[0]
    if source is not None and source.elements != out.elements:
        yield f"{out} has {out.elements} elements, {source} {source.elements}"


def _gather(call: Call) -> Iterator[str]:
    """Rows of a table, one a partition; in ``dma_scatter`` the table is what is written."""
    scatter = call.instruction.opcode == "dma_scatter"
    rows = call.src[0] if scatter else call.dst[0]
    table = call.dst[0] if scatter else call.src[0]
    index = call.src[1]
    if rows is None or table is None or index is None:
        return
    if table.shape[1:] and rows.access.free != table.elements // max(table.shape[0], 1):
        yield f"a row of {table} has not the elements of a partition of {rows}"
    if index.access.partitions != rows.access.partitions:
        yield f"{index} and {rows} span other partitions"
    if not index.dtype.is_integer:
        yield f"{index} is {index.dtype.value}, and is to be whole numbers"


def _sizes(**wanted: int) -> Callable[[Call], Iterator[str]]:
    """Elements in each partition of parts by name."""

    def check(call: Call) -> Iterator[str]:
        spec = SPECS[call.instruction.opcode]
        partitions = call.dst[0].access.partitions
        for param, part in zip((*spec.dst, *spec.src), (*call.dst, *call.src), strict=False):
            if part is None:
                continue
            if part.access.partitions != partitions:
                yield f"{part} and {call.dst[0]} span other partitions"
            if param.name in wanted and part.access.free != wanted[param.name]:
                yield f"{part} has not {wanted[param.name]} elements in a partition"

    return check


def _bn_aggr(call: Call) -> Iterator[str]:
    yield from _sizes(dst=2)(call)
    if call.src[0] is not None and call.src[0].access.free % 3:
        yield f"{call.src[0]} is not triples of count, mean and variance times count"


def _match_replace(call: Call) -> Iterator[str]:
    yield from _sizes(vals=8)(call)
    if call.src[0] is not None and call.src[0].access.free != call.dst[0].access.free:
        yield f"{call.src[0]} and {call.dst[0]} have other numbers of elements in a partition"


def _pattern(call: Call) -> Iterator[str]:
    yield from _tiles_agree(call)
    steps, free = call.attr("steps"), call.dst[0].shape[1:]
    if isinstance(steps, tuple) and len(steps) != len(free):
        yield f"{len(steps)} steps for the {len(free)} free dimensions of {call.dst[0]}"


# The table

_DST, _SRC = Param("dst"), Param("src")
_COLUMN = Param("operand0", number=True, column=True)
_PATTERN: Mapping[str, type] = {"steps": tuple, "offset": Affine, "channel_multiplier": int}
_PATTERN_DEFAULTS: Mapping[str, Attr] = {"offset": 0, "channel_multiplier": 0}
_ANY_SPACE = frozenset(Space)
_DMA_SPACES = frozenset({HBM, SBUF})
_DMA = (Engine.DMA,)
_VECTOR, _VECTOR_GPSIMD = (Engine.VECTOR,), (Engine.VECTOR, Engine.GPSIMD)

SPECS: Mapping[str, Spec] = {
    "nc_matmul": Spec(
        (Engine.TENSOR,),
        (Param("dst", frozenset({PSUM})),),
        (Param("stationary", frozenset({SBUF})), Param("moving", frozenset({SBUF}))),
        {"accumulate": Affine, "performance_mode": ("none", "double_row")},
        {"accumulate": False, "performance_mode": "none"},
        _matmul,
        accumulates,
    ),
    "nc_transpose": Spec((Engine.TENSOR, Engine.VECTOR), (_DST,), (_SRC,), shapes=_transpose),
    "activation": Spec(
        (Engine.SCALAR,),
        (_DST, Param("reduce_res", column=True)),
        (_SRC, Param("scale", number=True, column=True), Param("bias", number=True, column=True)),
        {"op": ACTIVATIONS, "reduce_op": ("none", "add"), "accumulate": Affine},
        {"reduce_op": "none", "accumulate": False},
        _tiles_agree,
        accumulates,
        optional_dst=1,
        optional_src=2,
    ),
    "tensor_copy": Spec(COMPUTE, (_DST,), (_SRC,), shapes=_tiles_agree),
    "tensor_copy_predicated": Spec(
        _VECTOR, (_DST,), (_SRC, Param("predicate")), shapes=_tiles_agree, updates=lambda call: True
    ),
    "tensor_tensor": Spec(_VECTOR_GPSIMD, (_DST,), (Param("data1"), Param("data2")), {"op": ALU_OPS}, {}, _tiles_agree),
    "tensor_scalar": Spec(
        COMPUTE,
        (_DST,),
        (Param("data"), _COLUMN, Param("operand1", number=True, column=True)),
        {"op0": ALU_OPS, "op1": ("none", *ALU_OPS), "reverse0": bool, "reverse1": bool},
        {"op1": "none", "reverse0": False, "reverse1": False},
        _tiles_agree,
        optional_src=1,
    ),
    "scalar_tensor_tensor": Spec(
        _VECTOR_GPSIMD,
        (_DST,),
        (Param("data"), _COLUMN, Param("operand1")),
        {"op0": ALU_OPS, "op1": ALU_OPS, "reverse0": bool, "reverse1": bool},
        {"reverse0": False, "reverse1": False},
        _tiles_agree,
    ),
    "select_reduce": Spec(
        _VECTOR,
        (_DST, Param("reduce_res", column=True)),
        (Param("predicate"), Param("on_true", number=True), Param("on_false", number=True)),
        {"reduce_op": ("none", "max")},
        {"reduce_op": "none"},
        _tiles_agree,
        optional_dst=1,
    ),
    "tensor_reduce": Spec(
        _VECTOR_GPSIMD, (_DST,), (_SRC,), {"op": REDUCTIONS, "negate": bool}, {"negate": False}, _reduce
    ),
    "tensor_partition_reduce": Spec((Engine.GPSIMD,), (_DST,), (_SRC,), {"op": REDUCTIONS}, {}),
    "tensor_tensor_scan": Spec(
        _VECTOR,
        (_DST,),
        (Param("data0"), Param("data1"), Param("initial", number=True, column=True)),
        {"op0": ALU_OPS, "op1": ALU_OPS},
        {},
        _tiles_agree,
    ),
    "reciprocal": Spec((Engine.VECTOR, Engine.SCALAR), (_DST,), (_SRC,), shapes=_tiles_agree),
    "memset": Spec(_VECTOR_GPSIMD, (_DST,), (Param("value", tensor=False, number=True),)),
    "iota": Spec((Engine.GPSIMD,), (_DST,), (), _PATTERN, _PATTERN_DEFAULTS, _pattern),
    "affine_select": Spec(
        (Engine.GPSIMD,),
        (_DST,),
        (Param("on_true_tile"), Param("on_false_value", tensor=False, number=True)),
        {**_PATTERN, "cmp_op": COMPARISONS},
        _PATTERN_DEFAULTS,
        _pattern,
    ),
    "bn_stats": Spec(_VECTOR, (_DST,), (_SRC,), shapes=_sizes(dst=6)),
    "bn_aggr": Spec(_VECTOR, (_DST,), (_SRC,), shapes=_bn_aggr),
    "max8": Spec(_VECTOR, (_DST,), (_SRC,), shapes=_sizes(dst=8)),
    "nc_find_index8": Spec(_VECTOR, (_DST,), (Param("data"), Param("vals")), shapes=_sizes(dst=8, vals=8)),
    "nc_match_replace8": Spec(
        _VECTOR, (_DST,), (Param("data"), Param("vals"), Param("imm", tensor=False, number=True)), shapes=_match_replace
    ),
    "dma_copy": Spec(
        _DMA,
        (Param("dst", _DMA_SPACES),),
        (Param("src", _DMA_SPACES),),
        {"accumulate": Affine},
        {"accumulate": False},
        _same_elements,
        accumulates,
    ),
    "dma_transpose": Spec(_DMA, (Param("dst", _DMA_SPACES),), (Param("src", _DMA_SPACES),), shapes=_transpose),
    "dma_gather": Spec(
        _DMA,
        (Param("dst", frozenset({SBUF})),),
        (Param("table", frozenset({HBM})), Param("index", frozenset({SBUF}), column=True)),
        shapes=_gather,
    ),
    "dma_scatter": Spec(
        _DMA,
        (Param("table", frozenset({HBM})),),
        (Param("src", frozenset({SBUF})), Param("index", frozenset({SBUF}), column=True)),
        {"accumulate": Affine},
        {"accumulate": False},
        _gather,
        lambda call: True,
    ),
    **{
        name: Spec(
            (Engine.GPSIMD,),
            (Param("dst", frozenset({HBM})),),
            (Param("src", frozenset({HBM})),),
            {"op": ("none", *REDUCTIONS), "ranks": int},
            {"op": "none"},
        )
        for name in COLLECTIVES
    },
}


def call_of(instruction: Instruction, buffers: Mapping[str, Buffer]) -> Call:
    """The instruction with its buffers; each of them is known."""
    parts = [Part(a, buffers[a.buffer]) if isinstance(a, Access) else None for a in instruction.src]
    return Call(tuple(Part(a, buffers[a.buffer]) for a in instruction.dst), tuple(parts), instruction)
