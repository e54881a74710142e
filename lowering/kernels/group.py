"""A group's kernel: choose the space, ask for the group's results in it, emit, with smaller tiles until they fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neuron_compiler.errors import CapacityError
from neuron_compiler.ir.graph import DType, TensorType
from neuron_compiler.ir.kernel import Affine, Kernel, affine
from neuron_compiler.ir.plan import Group, Program, group_boundary
from neuron_compiler.lowering.kernels.emission import Emission, Result, Space, divisor, space_of
from neuron_compiler.lowering.kernels.index_maps import Cut, Index, NoKernel, Padded, Padding, Split, Stored, flat
from neuron_compiler.lowering.kernels.nodes import Dag
from neuron_compiler.lowering.kernels.pull import Pull, on_chip
from neuron_compiler.trainium import kernel_checks
from neuron_compiler.trainium.builder import KernelBuilder, Ref, ds
from neuron_compiler.trainium.target import Target, by_name

MAX_FREE = 4096
"""Free elements of a tile to begin with; halved until the kernel fits."""

MAX_SPACES = 64
"""Spaces that the results of one group may be cut into."""


@dataclass(frozen=True)
class Domain:
    """A box of one result's index space: its atoms, and the index that they make.

    Attributes:
        atoms: names in order.
        extents: how far each counts.
        index: of the result, one a dimension.
    """

    atoms: tuple[str, ...]
    extents: tuple[int, ...]
    index: Index

    def split(self, atom: str, inner: int) -> Domain:
        """With one atom as an outer and an inner one."""
        at = self.atoms.index(atom)
        outer_name, inner_name = f"{atom}o", f"{atom}i"
        made = Affine(0, ((outer_name, inner),)) + Affine(0, ((inner_name, 1),))
        extents = (*self.extents[:at], self.extents[at] // inner, inner, *self.extents[at + 1 :])
        atoms = (*self.atoms[:at], outer_name, inner_name, *self.atoms[at + 1 :])
        return Domain(atoms, extents, _substituted(self.index, atom, made))

    def cut(self, atom: str, at: int) -> tuple[Domain, Domain]:
        """Up to a place of one atom, and from there."""
        position = self.atoms.index(atom)
        sizes = (at, self.extents[position] - at)
        first, second = (
            replace(self, extents=(*self.extents[:position], size, *self.extents[position + 1 :])) for size in sizes
        )
        moved = Affine(at, ((atom, 1),))
        return first, replace(second, index=_substituted(second.index, atom, moved))


def _substituted(index: Index, atom: str, made: Affine) -> Index:
    return tuple(place.without(atom) + made * place.factor(atom) for place in index)


def kernel_of(program: Program, group: Group, *, verify: bool = True) -> Kernel:
    """The kernel of a group for the program's target.

    Raises:
        NoKernel: an op has no engine instructions yet, or the group has a form that is not emitted.
    """
    target = by_name(program.target)
    limit = MAX_FREE
    while True:
        kernel = _built(program, group, target, limit)
        try:
            if verify:
                kernel_checks.verify(kernel, when="kernels")
        except CapacityError as error:
            if limit <= 16:
                raise NoKernel(error.what) from error
            limit //= 2
        else:
            return kernel


def _built(program: Program, group: Group, target: Target, limit: int) -> Kernel:
    reads, gives = group_boundary(program.graph, group)
    names = tuple(name for name in gives if isinstance(program.graph.types[name], TensorType))
    if not names:
        raise NoKernel("nothing reads its tensors")
    work = _Work(program, group, (reads, names), target, limit)
    for name in names:
        work.write(name)
    return work.builder.build(verify=False)


class _Work:
    """A kernel that is being built: what lies in HBM so far, and what is computed from it."""

    def __init__(
        self,
        program: Program,
        group: Group,
        boundary: tuple[tuple[str, ...], tuple[str, ...]],
        target: Target,
        limit: int,
    ) -> None:
        self.graph, self.target, self.limit = program.graph, target, limit
        self.inside = frozenset(group.ops)
        self.builder = KernelBuilder(group.name, program.target)
        self.refs: dict[str, tuple[Ref, TensorType]] = {}
        self.paddings: dict[Padding, TensorType] = {}
        reads, names = boundary
        for name in (*reads, *names):
            type_ = self.graph.types[name]
            if not isinstance(type_, TensorType):
                raise NoKernel("it reads several results of another op at once")
            make = self.builder.output if name in names else self.builder.input
            self.refs[name] = make(name, type_.dtype, type_.shape), type_

    def write(self, name: str) -> None:
        """The loops that compute a value and store it, after those of what it needs in HBM."""
        type_ = self.graph.tensor_type(name)
        on_chip(type_.dtype)
        if not type_.numel:
            return
        for dag, space, result in self._pieces(name):
            self._emit(dag, space, result)

    def _emit(self, dag: Dag, space: Space, result: Result) -> None:
        limit = self.limit
        if any(node.kind == "product" for node in dag.nodes):
            limit = min(limit, self.target.psum_bank_bytes_per_partition // DType.F32.itemsize)
        emission = Emission(self.builder, dag, space, limit, self.target.num_partitions)
        emission.refs = self.refs
        emission.run(result)

    def _pieces(self, name: str) -> list[tuple[Dag, Space, Result]]:
        """Boxes that make up a value, each with atoms as fine as its views need."""
        shape = self.graph.tensor_type(name).shape
        pending, cuts = [_box(shape)], dict[str, int]()
        made: list[tuple[Dag, Space, Result]] = []
        while pending:
            domain = pending.pop()
            inside = self.inside - (self.refs.keys() - {name})
            extents = dict(zip(domain.atoms, domain.extents, strict=True))
            pull = Pull(self.graph, inside, extents, cuts, self.paddings)
            try:
                node = pull.value(name, domain.index)
                space = space_of(pull.dag, domain.atoms, pull.extents, self.target.num_partitions)
            except Split as split:
                if split.atom in domain.atoms:
                    domain = domain.split(split.atom, split.inner)
                else:  # of a reduction or a product
                    cuts[split.atom] = split.inner
                pending.append(domain)
            except Cut as cut:
                pending.extend(reversed(domain.cut(cut.atom, cut.at)))
            except Stored as stored:
                self._store(stored.name)
                pending.append(domain)
            except Padded as padded:
                self._pad(padded.padding)
                pending.append(domain)
            else:
                made.append((pull.dag, space, Result(name, node, flat(domain.index, shape))))
                if len(made) > MAX_SPACES:
                    raise NoKernel(f"its result falls into more than {MAX_SPACES} pieces")
        return made

    def _store(self, name: str) -> None:
        """A value between, in HBM."""
        type_ = self.graph.tensor_type(name)
        on_chip(type_.dtype)
        ref = self.builder.hbm(name, type_.dtype, type_.shape)
        # Known before it is written: its own op reads it nowhere.
        self.refs[name] = ref, type_
        self.write(name)

    def _pad(self, padding: Padding) -> None:
        """A copy of a value in HBM with a border around it."""
        if padding.source not in self.refs:
            self._store(padding.source)
        source, type_ = self.refs[padding.source]
        zipped = zip(type_.shape, padding.before, padding.after, strict=True)
        made = TensorType(tuple(extent + low + high for extent, low, high in zipped), type_.dtype)
        if padding.name in self.refs:
            raise NoKernel(f"%{padding.source} with two borders")
        ref = self.builder.hbm(padding.name, made.dtype, made.shape)
        self.refs[padding.name], self.paddings[padding] = (ref, made), made
        rows = divisor(made.numel, self.target.num_partitions)
        shape = (rows, made.numel // rows)
        box, dag = _box(shape), Dag()
        extents = dict(zip(box.atoms, box.extents, strict=True))
        space = space_of(dag, box.atoms, extents, self.target.num_partitions)
        self._emit(dag, space, Result(padding.name, dag.number(padding.number), flat(box.index, shape)))
        place = tuple(ds(low, extent) for low, extent in zip(padding.before, type_.shape, strict=True))
        self.builder.dma_copy(ref[place], source)


def _box(shape: tuple[int, ...]) -> Domain:
    """The whole index space of a value, one atom a dimension."""
    atoms = tuple(f"i{axis}" for axis in range(len(shape)))
    places = zip(atoms, shape, strict=True)
    index = tuple(Affine(0, ((atom, 1),)) if extent > 1 else affine(0) for atom, extent in places)
    return Domain(atoms, shape, index)
