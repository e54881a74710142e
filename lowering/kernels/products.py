"""Matrix products: contraction tiles on partitions, accumulated in PSUM in the order of the loops."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod

from neuron_compiler.ir.graph import DType
from neuron_compiler.ir.kernel import Access, Affine, affine
from neuron_compiler.lowering.kernels.emission import Emission, Env, Span, place_of
from neuron_compiler.lowering.kernels.nodes import Node, NodeId
from neuron_compiler.trainium.builder import Ref, ds


def emit_product(e: Emission, node: Node, env: Env) -> Ref:
    """One tile of a product, in SBUF."""
    made = e.new(node, env)
    acc = e.b.psum("acc", DType.F32, e.shape(e.is_full(node.atoms), env))
    accumulate(e, acc, node, env)
    e.b.tensor_copy(made, acc)
    return made


def accumulate(e: Emission, acc: Ref, node: Node, env: Env) -> None:
    """The contraction of a tile into PSUM: whole atoms but the innermost, which is cut to the partitions."""
    over = node.attrs[0]
    if not isinstance(over, tuple):
        raise TypeError(f"{over!r} are no atoms")
    *_, inner = over
    size = min(e.space.extents[inner], e.partitions)
    rows = () if e.space.partition is None else (e.space.partition,)

    def inside(rest: tuple[str, ...], env: Env, added: Affine | bool) -> None:
        if not rest:
            stationary, moving = (
                matrix(e, node.args[0], env, inner, rows),
                matrix(e, node.args[1], env, inner, e.space.free),
            )
            e.b.nc_matmul(acc, stationary, moving, accumulate=added)
            return
        atom = rest[0]
        step = size if atom == inner else 1
        count, remains = divmod(e.space.extents[atom], step)
        with e.b.loop(atom, count, sequential=True) if count > 1 else nullcontext(affine(0)) as i:
            inside(rest[1:], {**env, atom: Span(i * step, step)}, added if added is True else affine(added) + i)
        if remains:
            inside(rest[1:], {**env, atom: Span(affine(count * step), remains)}, True)

    inside(over, env, affine(0))


def matrix(e: Emission, node: NodeId, env: Env, contracted: str, free: tuple[str, ...]) -> Access:
    """An operand of a product: what is contracted on partitions, rows or columns free."""
    turned = e.within(contracted, free, {contracted: env[contracted].size})
    record = e.dag[node]
    if record.kind == "load":
        return _loaded(turned, record, env)
    return turned.tile(node, env, {}, full=bool(free))


def _loaded(e: Emission, node: Node, env: Env) -> Access:
    """A load for a product: DMA transposes where what is contracted lies side by side in HBM."""
    name, place = str(node.attrs[0]), place_of(node.attrs[1])
    made = e.new(node, env, full=bool(e.space.free), name=name)
    partition = e.space.partition or ""
    stride = _joined_stride(e, place) if place.factor(partition) == 1 else None
    if stride is None:
        e.b.dma_copy(made, e.in_hbm(name, place, env, bool(e.space.free)))
        return made[...]
    tiled = (*e.space.free, partition)
    outer = [a for a, _ in place.terms if a not in tiled and e.space.extents[a] > 1]
    columns = prod(e.space.extents[a] for a in e.space.free)
    extents = (*(e.space.extents[a] for a in outer), columns, e.space.extents[partition])
    strides = (*(place.factor(a) for a in outer), stride, 1)
    start, inner = affine(0), columns
    for atom in e.space.free:
        inner //= e.space.extents[atom]
        start = start + env[atom].start * inner
    taken = prod(env[a].size for a in e.space.free)
    cut = (
        *(ds(env[a].start, env[a].size) for a in outer),
        ds(start, taken),
        ds(env[partition].start, env[partition].size),
    )
    e.b.dma_transpose(made, e.refs[name][0].viewed(extents, strides, place.constant)[cut])
    return made[...]


def _joined_stride(e: Emission, place: Affine) -> int | None:
    """The stride of the free atoms taken as one; None where they are not evenly apart."""
    if not e.space.free:
        return None
    stride = step = place.factor(e.space.free[-1])
    for atom in reversed(e.space.free):
        if place.factor(atom) != step:
            return None
        step *= e.space.extents[atom]
    return stride
