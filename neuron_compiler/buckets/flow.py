"""How one op moves padding: what its rule says of each operand's dimensions, and the engine that holds it to that.

A rule says per operand which dimension of the result each dimension becomes (``follow``), which are read across and so
have to be masked (``mask``), which are read at true positions only (``vouch``), and which dimensions of the result have
their true elements right for a reason of the op's own (``claim``). What it does not mention must not be padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neuron_compiler.buckets import extent
from neuron_compiler.buckets.extent import Dim, Factor, Tensor
from neuron_compiler.ir.graph import Op, Operand, TensorType, TupleType, Type, Value
from neuron_compiler.ir.space import base_name


class NotProven(Exception):
    """The padding may reach a result; the text says how."""


@dataclass(frozen=True)
class Mask:
    """Padding of one dimension of an operand is replaced by ``fill`` before the op reads it."""

    name: str
    dimension: int
    fill: bool | int | float


@dataclass
class Case:
    """One op under both sizes, and what its rule said of it.

    Attributes:
        true: the op at the true sizes.
        op: the op at the bucket's.
        tensors: every tensor operand, in order of the operands; lists are laid flat.
        at: numbers in ``tensors`` of each positional operand.
        hidden: an operand and its dimension whose padding an attention's mask has to hide, where it has no mask.
    """

    true: Op
    op: Op
    tensors: tuple[Tensor, ...]
    at: tuple[tuple[int, ...], ...]
    following: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    masks: dict[tuple[int, int], bool | int | float] = field(default_factory=dict)
    vouched: set[tuple[int, int]] = field(default_factory=set)
    claimed: dict[int, Dim | None] = field(default_factory=dict)
    ranged: dict[int, int] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)
    hidden: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return base_name(self.op.kind)

    def tensor(self, position: int) -> Tensor:
        """The tensor at a positional operand."""
        return self.tensors[self.number(position)]

    def number(self, position: int) -> int:
        """Its number among the tensors; NotProven where there is none."""
        if position >= len(self.at) or len(self.at[position]) != 1:
            raise NotProven("has operands of another form than expected")
        return self.at[position][0]

    def has(self, position: int) -> bool:
        """Whether there is a tensor at a positional operand."""
        return position < len(self.at) and len(self.at[position]) == 1

    def integer(self, position: int, default: int | None = None) -> int:
        """The number at a positional operand."""
        found = self.op.operand(position, default)
        if not isinstance(found, int) or isinstance(found, bool):
            raise NotProven("has operands of another form than expected")
        return found

    def integers(self, position: int, default: Sequence[int] = ()) -> tuple[int, ...]:
        """The numbers at a positional operand; one stands for a tuple of one."""
        found: Operand = self.op.operand(position, tuple(default))
        if isinstance(found, int) and not isinstance(found, bool):
            return (found,)
        if not isinstance(found, tuple):
            raise NotProven("has operands of another form than expected")
        return tuple(item for item in found if isinstance(item, int))

    def axis(self, position: int, default: int | None = None) -> int:
        """The dimension at operand ``position`` of the first tensor, counted from the start."""
        return self.integer(position, default) % max(1, self.tensors[0].rank)

    # --- what rules say ----------------------------------------------------------------------------------------

    def follow(self, number: int, dims: Sequence[int | None]) -> None:
        """Dimension d of a tensor becomes dimension ``dims[d]`` of the result, element by element."""
        self.following[number] = tuple(dims)

    def mask(self, number: int, dimension: int, fill: bool | int | float) -> None:
        """A dimension is read across: its padding has to be ``fill``."""
        if extent.is_padded(self.tensors[number].dims[dimension]):
            self.masks[number, dimension] = fill

    def vouch(self, number: int, *dimensions: int) -> None:
        """Of these dimensions only true positions are read, or nothing; all of them where none is given."""
        found = dimensions or tuple(range(self.tensors[number].rank))
        self.vouched.update((number, d) for d in found)

    def claim(self, dimension: int, dim: Dim | None = None) -> None:
        """The true elements of a dimension of the result are right by the op's meaning; ``dim`` where not plain."""
        self.claimed[dimension] = dim

    def no_reader(self, result: int) -> None:
        """A result of a tuple does not depend on any padded operand."""
        self.free.add(result)

    def in_range(self, number: int, safe: int) -> None:
        """Elements of this tensor can make the op raise; ``safe`` cannot."""
        self.ranged[number] = safe

    # --- the engine --------------------------------------------------------------------------------------------

    def results(self) -> tuple[tuple[Tensor | None, ...], tuple[Mask, ...]]:
        """The op's results and the masks that they need; NotProven where some padding is not accounted for."""
        for number, safe in self.ranged.items():
            for d in self.tensors[number].padded:
                if not extent.repeats(self.tensors[number].dims[d]):
                    self.masks.setdefault((number, d), safe)
        for number, tensor in enumerate(self.tensors):
            for d in tensor.padded:
                if (number, d) in self.masks or (number, d) in self.vouched:
                    continue
                if self._target(number, d) is None:
                    raise NotProven(f"reads across the padded dimension {d} of %{tensor.name}")
        types = zip(_elements(self.true.type), _elements(self.op.type), strict=True)
        results = tuple(
            None if b is None or t is None else self._result(t, b, n in self.free) for n, (t, b) in enumerate(types)
        )
        masks = tuple(Mask(self.tensors[n].name, d, fill) for (n, d), fill in self.masks.items())
        return results, masks

    def _target(self, number: int, d: int) -> int | None:
        found = self.following.get(number)
        return found[d] if found is not None else None

    def _result(self, true: TensorType, bucket: TensorType, is_free: bool) -> Tensor:
        if not is_free and bucket.numel:
            self._all_follow_into(true, bucket)
        sizes = zip(true.shape, bucket.shape, strict=True)
        return Tensor(self.op.result, bucket.dtype, tuple(self._dim(r, t, b) for r, (t, b) in enumerate(sizes)))

    def _all_follow_into(self, true: TensorType, bucket: TensorType) -> None:
        for number, tensor in enumerate(self.tensors):
            for d in tensor.padded:
                if (number, d) in self.masks or (number, d) in self.vouched:
                    continue
                r = self._target(number, d)
                sizes = (true.shape[r], bucket.shape[r]) if r is not None and r < true.rank else None
                if sizes != extent.extents(tensor.dims[d]):
                    raise NotProven(f"reads across the padded dimension {d} of %{tensor.name}")

    def _dim(self, r: int, true: int, bucket: int) -> Dim:
        """Dimension ``r`` of a result, from the operands' dimensions that follow into it."""
        if true > bucket:
            raise NotProven("has a size that shrinks where the padded one grows")
        sources = [
            (number, d, self.tensors[number].dims[d])
            for number, found in self.following.items()
            for d, target in enumerate(found)
            if target == r and extent.extents(self.tensors[number].dims[d]) != (1, 1)
        ]
        if r in self.claimed:
            claimed = self.claimed[r]
            return extent.plain(true, bucket) if claimed is None else claimed
        padded = [dim for _, _, dim in sources if extent.is_padded(dim)]
        if true == bucket:  # what is padded and was to follow here has been masked: it is read across
            return extent.plain(true, bucket)
        if not padded:
            raise NotProven(f"makes {true} elements at the true size and {bucket} at the bucket's")
        if extent.extents(padded[0]) != (true, bucket) or not all(
            extent.alike(dim, padded[0]) for _, _, dim in sources
        ):
            raise NotProven(f"joins dimensions whose padding lies differently (dimension {r} of the result)")
        same = (
            r not in self.broken
            and not any((number, d) in self.masks for number, d, _ in sources)
            and all(extent.repeats(dim) for _, _, dim in sources)
        )
        return padded[0] if same else extent.without_repeats(padded[0])


def _elements(of: Type) -> tuple[TensorType | None, ...]:
    return of.elements if isinstance(of, TupleType) else (of,)


def tensors_of(op: Op, known: dict[str, tuple[Tensor | None, ...]]) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """Tensor operands of an op laid flat, and the numbers of those at each positional operand."""
    tensors: list[Tensor] = []
    at: list[tuple[int, ...]] = []

    def collect(operand: Operand) -> tuple[int, ...]:
        if isinstance(operand, tuple):
            return tuple(n for item in operand for n in collect(item))
        if not isinstance(operand, Value):
            return ()
        (tensor,) = known[operand.name]
        if tensor is None:
            raise NotProven("reads a tuple")
        tensors.append(tensor)
        return (len(tensors) - 1,)

    for operand in op.operands:
        at.append(collect(operand))
    for _, value in op.attrs:
        collect(value)
    return tensors, at


__all__ = ["Case", "Dim", "Factor", "Mask", "NotProven", "Tensor", "tensors_of"]
