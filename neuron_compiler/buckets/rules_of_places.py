"""What views, creations and indexing do with padding: ops that move elements and compute nothing."""

from __future__ import annotations

from neuron_compiler.buckets import extent
from neuron_compiler.buckets.extent import Dim
from neuron_compiler.buckets.flow import Case, NotProven
from neuron_compiler.buckets.rules import rows, rule
from neuron_compiler.ir import space
from neuron_compiler.ir.graph import TensorType


def _types(case: Case) -> tuple[TensorType, TensorType]:
    """The result's type at the true sizes and at the bucket's."""
    true, bucket = case.true.type, case.op.type
    if not isinstance(true, TensorType) or not isinstance(bucket, TensorType):
        raise NotProven("has a result of another form than expected")
    return true, bucket


@rule("alias", "detach", "detach_copy", "clone", "contiguous", "positive", "lift", "lift_fresh", "lift_fresh_copy")
@rule("resolve_conj", "resolve_neg", "real", "imag")
def copied(case: Case) -> None:
    rows(case, 0)


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy", sizes=(1, 2))
@rule("flatten", "squeeze", "unsqueeze")
def reshaped(case: Case) -> None:
    """Elements keep their order: the dimensions' factors are dealt out again."""
    true, bucket = _types(case)
    source = case.tensors[0]
    if bucket.dtype is not source.dtype:
        raise NotProven("takes the bytes for another type")
    found = extent.regrouped(source.dims, true.shape, bucket.shape)
    if found is None:
        raise NotProven(f"merges or splits dimensions of %{source.name} so that padding comes between true elements")
    case.vouch(0)
    for d, dim in enumerate(found):
        if extent.is_padded(dim):
            case.claim(d, dim)


@rule("permute", "transpose", "t", "permute_copy")
def permuted(case: Case) -> None:
    name = case.op.kind
    if "permute_copy" in name:
        order = tuple(d % case.tensors[0].rank for d in case.integers(1))
    else:
        order = space.permutation(case.op, case.tensors[0].rank)
    case.follow(0, [order.index(d) for d in range(case.tensors[0].rank)])


@rule("select", "select_copy", sizes=(2,))
def selected(case: Case) -> None:
    """One place of a dimension; the last one is the same place in padding that repeats it."""
    source, axis = case.tensors[0], case.axis(1)
    case.follow(0, [d - (d > axis) if d != axis else None for d in range(source.rank)])
    if not extent.is_padded(source.dims[axis]):
        if case.true.operand(2) != case.op.operand(2):
            raise NotProven("uses a size as an index")
        return
    true, bucket = (op.operand(2) for op in (case.true, case.op))
    sizes = source.true[axis], source.bucket[axis]
    if not isinstance(true, int) or not isinstance(bucket, int) or len(source.dims[axis]) != 1:
        return
    places = true % sizes[0], bucket % sizes[1]
    repeated = extent.repeats(source.dims[axis]) and places[0] == sizes[0] - 1 and places[1] >= places[0]
    if places[0] == places[1] or repeated:
        case.vouch(0, axis)
    else:
        raise NotProven(f"counts from the end of the padded dimension {axis} of %{source.name}")


@rule("slice", "slice_copy", "narrow", "narrow_copy", sizes=(2, 3))
def sliced(case: Case) -> None:
    """From the same start, by the same steps: element i of the result is element start + i * step of both."""
    source, axis = case.tensors[0], case.axis(1, 0)
    true, bucket = _types(case)
    starts = []
    for op, size in ((case.true, source.true[axis]), (case.op, source.bucket[axis])):
        start = op.operand(2)
        if start is None:
            start = 0
        if not isinstance(start, int):
            raise NotProven("starts at a place that is computed")
        starts.append(min(max(start + size if start < 0 else start, 0), size))
    step = case.integer(4, 1) if case.name.startswith("slice") else 1
    rows(case, 0, axis)
    if true.shape[axis] == 0 and bucket.shape[axis] == 0:
        case.vouch(0, axis)
        return
    if starts[0] != starts[1]:
        raise NotProven(f"counts from the end of the padded dimension {axis} of %{source.name}")
    dim = source.dims[axis]
    if starts[0] == 0 and step == 1 and (true.shape[axis], bucket.shape[axis]) == extent.extents(dim):
        rows(case, 0)
        return
    if len(extent.canonical(dim)) > 1:
        raise NotProven(f"cuts the merged dimension {axis} of %{source.name}")
    case.vouch(0, axis)
    if true.shape[axis] != bucket.shape[axis]:
        to_the_end = extent.is_padded(dim) and step == 1 and starts[0] + true.shape[axis] == source.true[axis]
        case.claim(axis, extent.plain(true.shape[axis], bucket.shape[axis], to_the_end and extent.repeats(dim)))


@rule("split", "split_with_sizes", "split_copy", "split_with_sizes_copy", "unsafe_split", "unsafe_split_with_sizes")
def split(case: Case) -> None:
    rows(case, 0, case.axis(2, 0))


@rule("unbind", "unbind_copy")
def unbound(case: Case) -> None:
    axis = case.axis(1, 0)
    case.follow(0, [None if d == axis else d - (d > axis) for d in range(case.tensors[0].rank)])


@rule("unfold")
def windows(case: Case) -> None:
    axis = case.axis(1)
    rows(case, 0, axis)
    if len(case.tensors[0].dims[axis]) == 1:
        case.vouch(0, axis)
        case.claim(axis)


@rule("cat")
def joined(case: Case) -> None:
    """A padded part of the joined dimension comes last, or others would come behind its padding."""
    tensors = case.tensors
    rank = max(t.rank for t in tensors)
    axis = case.integer(1, 0) % max(1, rank)
    for number, tensor in enumerate(tensors):
        if tensor.rank != rank:
            continue
        rows(case, number, axis)
        if extent.is_padded(tensor.dims[axis]):
            if number != len(tensors) - 1 or len(extent.canonical(tensor.dims[axis])) > 1:
                raise NotProven(f"joins other elements behind the padding of %{tensor.name}")
            case.vouch(number, axis)
            true, bucket = _types(case)
            kept = extent.repeats(tensor.dims[axis])
            case.claim(axis, extent.plain(true.shape[axis], bucket.shape[axis], kept))


@rule("stack")
def stacked(case: Case) -> None:
    rank = case.tensors[0].rank + 1
    axis = case.integer(1, 0) % rank
    for number in range(len(case.tensors)):
        case.follow(number, [d + (d >= axis) for d in range(rank - 1)])


@rule("repeat", "tile", sizes=(1,))
def repeated(case: Case) -> None:
    """A padded dimension follows where it is taken once; a single element may be taken as often as a size says."""
    source = case.tensors[0]
    shape = case.op.type.shape if isinstance(case.op.type, TensorType) else ()
    shift = len(shape) - source.rank
    counts = []
    for op in (case.true, case.op):
        times = op.operand(1)
        if not isinstance(times, tuple) or not all(isinstance(t, int) for t in times):
            raise NotProven("has operands of another form than expected")
        counts.append((1,) * (len(shape) - len(times)) + times)
    for d, (small, large) in enumerate(zip(*counts, strict=True)):
        if small != large:
            if d >= shift and source.bucket[d - shift] != 1:
                raise NotProven("repeats several elements as often as a size says")
            case.claim(d, extent.plain(small, large, repeats=True))  # type: ignore[arg-type]
    case.follow(0, [d + shift if counts[1][d + shift] == 1 else None for d in range(source.rank)])


@rule("constant_pad_nd")
def padded(case: Case) -> None:
    """Elements may be put before a padded dimension, not behind it."""
    source, widths = case.tensors[0], case.integers(1)
    last = source.rank - 1
    before = {last - i // 2: widths[i] for i in range(0, len(widths), 2)}
    after = {last - i // 2: widths[i + 1] for i in range(0, len(widths), 2)}
    rows(case, 0, *(d for d in after if before[d] or after[d]))
    for d in source.padded:
        if (before.get(d) or after.get(d)) and after[d] <= 0 and len(extent.canonical(source.dims[d])) == 1:
            case.vouch(0, d)
            case.claim(d)


@rule("slice_scatter", sizes=(3, 4))
def slice_scattered(case: Case) -> None:
    """A part is replaced: at true places by true elements where the part starts and ends alike."""
    base, part, axis = case.tensors[0], case.tensors[1], case.axis(2, 0)
    rows(case, 0)
    rows(case, 1)
    bounds = []
    for op, size in ((case.true, base.true[axis]), (case.op, base.bucket[axis])):
        start, end = op.operand(3), op.operand(4)
        start, end = 0 if start is None else start, size if end is None else end
        if not isinstance(start, int) or not isinstance(end, int):
            raise NotProven("starts or ends at a place that is computed")
        start, end = (min(max(v + size if v < 0 else v, 0), size) for v in (start, end))
        bounds.append((start, end, end == size))
    whole = bounds[0][2] and bounds[1][2]
    if bounds[0][0] != bounds[1][0] or not (whole or bounds[0][1] == bounds[1][1]):
        raise NotProven(f"counts from the end of the padded dimension {axis} of %{base.name}")
    if extent.is_padded(base.dims[axis]) or extent.is_padded(part.dims[axis]):
        if len(extent.canonical(base.dims[axis])) > 1 or not extent.is_padded(base.dims[axis]):
            raise NotProven(f"writes into the merged dimension {axis} of %{base.name}")
        case.vouch(0, axis)
        case.vouch(1, axis)
        rows(case, 0, axis)
        rows(case, 1, axis)
        case.claim(axis)
    else:
        rows(case, 1, axis)


@rule("select_scatter", sizes=(3,))
def select_scattered(case: Case) -> None:
    base, axis = case.tensors[0], case.axis(2)
    rows(case, 0)
    case.follow(1, [d + (d >= axis) for d in range(base.rank - 1)])
    places = [op.operand(3) for op in (case.true, case.op)]
    if extent.is_padded(base.dims[axis]):
        if not all(isinstance(p, int) and p >= 0 for p in places):
            raise NotProven(f"counts from the end of the padded dimension {axis} of %{base.name}")
        case.broken.add(axis)
    if places[0] != places[1]:
        raise NotProven("uses a size as an index")


# --- creations ----------------------------------------------------------------------------------------------------


def _filled(case: Case) -> None:
    true, bucket = _types(case)
    for number in range(len(case.tensors)):
        case.vouch(number)
    for d, (small, large) in enumerate(zip(true.shape, bucket.shape, strict=True)):
        if small != large:
            case.claim(d, extent.plain(small, large, repeats=True))


rule("zeros", "ones", "full", "empty", "empty_permuted", sizes=(0,))(_filled)
rule("new_zeros", "new_ones", "new_full", "new_empty", sizes=(1,))(_filled)
rule("empty_strided", sizes=(0, 1))(_filled)
rule("new_empty_strided", sizes=(1, 2))(_filled)


@rule("zeros_like", "ones_like", "full_like", "empty_like", "fill")
def filled_like(case: Case) -> None:
    """Of the operand only the shape is read, and its padding is where the result's is."""
    for d in case.tensors[0].padded:
        dim: Dim = tuple(extent.Factor(f.true, f.bucket, f.is_padded) for f in case.tensors[0].dims[d])
        case.claim(d, dim)
    case.vouch(0)


@rule("arange", "eye", sizes=(0, 1))
def counted(case: Case) -> None:
    """Element i does not depend on how many there are, from the same start by the same steps."""
    true, bucket = _types(case)
    has_start = case.name == "arange" and case.op.kind != "aten.arange.default"
    if has_start and case.true.operand(0) != case.op.operand(0):
        raise NotProven("counts from a size")
    for d, (small, large) in enumerate(zip(true.shape, bucket.shape, strict=True)):
        if small != large:
            case.claim(d)


# --- indexing -----------------------------------------------------------------------------------------------------


@rule("embedding")
def embedding(case: Case) -> None:
    index = case.tensors[1]
    case.follow(0, [None, index.rank])
    case.follow(1, range(index.rank))
    case.in_range(1, 0)


@rule("embedding_dense_backward")
def embedding_backward(case: Case) -> None:
    """Rows of the gradient are summed into those of the table; padded ones are zero, and go to any row."""
    if case.op.operand(4, False) is not False:
        return
    for d in range(case.tensors[1].rank):
        case.mask(0, d, 0.0)
        case.vouch(1, d)
    case.in_range(1, 0)


@rule("gather")
def gathered(case: Case) -> None:
    axis, index = case.axis(1), case.tensors[1]
    rows(case, 0, axis)
    rows(case, 1)
    for d in range(index.rank):
        if d != axis and extent.is_padded(case.tensors[0].dims[d]) != extent.is_padded(index.dims[d]):
            raise NotProven("reads a part of a padded dimension")
    case.in_range(1, 0)


@rule("index_select")
def rows_selected(case: Case) -> None:
    axis = case.axis(1)
    rows(case, 0, axis)
    if case.tensors[1].rank == 1:
        case.follow(1, [axis])
    case.in_range(1, 0)


@rule("index", "_unsafe_index")
def indexed(case: Case) -> None:
    """``x[:, i, j]``: the index tensors' broadcast shape in the place of the dimensions they index."""
    source, given = case.tensors[0], case.op.operand(1)
    if not isinstance(given, tuple):
        raise NotProven("has operands of another form than expected")
    if any(t.dtype.value == "bool" for t in case.tensors[1:]):
        raise NotProven("selects by a mask")
    places = [d for d, item in enumerate(given) if item is not None]
    width = max((t.rank for t in case.tensors[1:]), default=0)
    neighbours = places == list(range(places[0], places[-1] + 1))
    first = places[0] if neighbours else 0
    kept = [d for d in range(source.rank) if d not in places]
    order = [*[d for d in kept if d < first], *([None] * width), *[d for d in kept if d >= first]]
    case.follow(0, [None if d in places else order.index(d) for d in range(source.rank)])
    for number, tensor in enumerate(case.tensors[1:], 1):
        case.follow(number, [first + width - tensor.rank + d for d in range(tensor.rank)])
        case.in_range(number, 0)


@rule("scatter", "scatter_add")
def scattered(case: Case) -> None:
    """Lines along one dimension are written each by itself; the others follow."""
    axis = case.axis(1)
    if case.op.kind in ("aten.scatter.reduce", "aten.scatter.value_reduce"):
        return
    for number in range(len(case.tensors)):
        rows(case, number, axis)
        others = [d for d in range(case.tensors[0].rank) if d != axis]
        for d in others:
            if extent.is_padded(case.tensors[number].dims[d]) != extent.is_padded(case.tensors[0].dims[d]):
                raise NotProven("writes a part of a padded dimension")
    case.in_range(1, 0)
