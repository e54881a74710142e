"""What each op does with padding, by its ATen name: one short rule per kind of data flow.

Input: a Case. A rule tells it where dimensions go; ``flow`` refuses what a rule leaves out, so a rule that says too
little costs a bucket, and only one that says too much could cost a result. Ops without a rule must not be padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from neuron_compiler.buckets import extent
from neuron_compiler.buckets.extent import Tensor
from neuron_compiler.buckets.flow import Case, NotProven
from neuron_compiler.ir.graph import DType

Rule = Callable[[Case], None]


@dataclass(frozen=True)
class Record:
    """A rule, and the positional operands in which it expects sizes: those may differ between the two programs."""

    rule: Rule
    sizes: frozenset[int] = frozenset()


RULES: dict[str, Record] = {}


def rule(*names: str, sizes: Sequence[int] = ()) -> Callable[[Rule], Rule]:
    """Register the rule of some ops."""

    def register(function: Rule) -> Rule:
        RULES.update((name, Record(function, frozenset(sizes))) for name in names)
        return function

    return register


def alongside(case: Case, number: int, rank: int) -> None:
    """The operand's dimensions follow into the last ones of a result of ``rank``, as broadcasting has it."""
    own = case.tensors[number].rank
    case.follow(number, [d + rank - own for d in range(own)])


def rows(case: Case, number: int, *across: int) -> None:
    """Each dimension stays where it is, but those in ``across``, which are read whole."""
    case.follow(number, [None if d in across else d for d in range(case.tensors[number].rank)])


def elementwise(case: Case) -> None:
    """Each result element depends on the same element of each operand, broadcast."""
    rank = max((t.rank for t in case.tensors), default=0)
    for number in range(len(case.tensors)):
        alongside(case, number, rank)
    if case.name in ("tril", "triu"):
        case.broken.update((rank - 2, rank - 1))
    divides = case.name in ("floor_divide", "remainder", "fmod", "div") and case.has(1)
    if divides and not case.tensor(1).dtype.is_floating:
        case.in_range(case.number(1), 1)


@rule("expand", sizes=(1,))
def expand(case: Case) -> None:
    true, bucket = case.true.type, case.op.type
    rank = bucket.rank  # type: ignore[union-attr]
    alongside(case, 0, rank)
    source = case.tensors[0]
    for d, (small, large) in enumerate(zip(true.shape, bucket.shape, strict=True)):  # type: ignore[union-attr]
        own = d - (rank - source.rank)
        if small != large and (own < 0 or source.bucket[own] == 1):
            case.claim(d, extent.plain(small, large, repeats=True))


# --- reductions ---------------------------------------------------------------------------------------------------

# Position of the dimensions among the operands; those of overloads without one are all.
_DIMENSION = {"linalg_vector_norm": 2, "norm": 2}

# What padding has to hold so that it does not count. None: as it is where it repeats an element, else infinite.
_NEUTRAL: Mapping[str, bool | int | float | None] = {
    "sum": 0,
    "prod": 1,
    "any": False,
    "all": True,
    "logsumexp": -inf,
    "amax": None,
    "amin": None,
    "max": None,
    "min": None,
    "argmax": None,
    "argmin": None,
}


def reduced(case: Case) -> tuple[int, ...]:
    """Dimensions of the first tensor that a reduction folds; what is kept follows into the result."""
    data = case.tensors[0]
    given = (
        case.integers(_DIMENSION.get(case.name, 1)) if case.op.operand(_DIMENSION.get(case.name, 1)) is not None else ()
    )
    if case.op.kind.endswith(".default") and case.name in ("sum", "prod", "any", "all", "mean", "max", "min"):
        given = ()
    dims = tuple(d % max(1, data.rank) for d in given) or tuple(range(data.rank))
    result = next(iter(case.op.type.elements)) if hasattr(case.op.type, "elements") else case.op.type
    keeps = result.rank == data.rank  # type: ignore[union-attr]
    kept = [d for d in range(data.rank) if d not in dims]
    case.follow(0, [None if d in dims else d if keeps else kept.index(d) for d in range(data.rank)])
    return dims


@rule(*_NEUTRAL)
def reduction(case: Case) -> None:
    data, fill = case.tensors[0], _NEUTRAL[case.name]
    if len(case.tensors) != 1:
        raise NotProven("has operands of another form than expected")
    if case.name.startswith("arg") and case.op.operand(1) is None and data.rank > 1:
        return
    gives_places = case.name.startswith("arg") or case.op.kind.endswith(".dim")
    for d in reduced(case):
        if fill is None and gives_places and len(extent.canonical(data.dims[d])) > 1:
            continue
        if fill is not None:
            if not extent.is_padded(data.dims[d]):
                continue
            if fill == -inf and not data.dtype.is_floating:
                raise NotProven(f"reduces the padded dimension {d} of %{data.name}")
            case.mask(0, d, _cast(fill, data.dtype))
        elif extent.repeats(data.dims[d]):
            case.vouch(0, d)
        elif data.dtype.is_floating:
            case.mask(0, d, -inf if case.name in ("amax", "max", "argmax") else inf)


def _cast(fill: bool | int | float, dtype: DType) -> bool | int | float:
    """The neutral element as a number of the operand's type."""
    if fill == -inf:
        return fill
    if dtype is DType.BOOL:
        return bool(fill)
    return float(fill) if dtype.is_floating else int(fill)


@rule("linalg_vector_norm")
def vector_norm(case: Case) -> None:
    order = case.op.operand(1, 2)
    positive = isinstance(order, int | float) and not isinstance(order, bool) and 0 < order < inf
    for d in reduced(case):
        if positive:
            case.mask(0, d, 0.0)


@rule("mean")
def mean(case: Case) -> None:
    """Over a padded dimension: the masked sum, divided by the true number of elements."""
    if not case.tensors[0].dtype.is_floating or case.op.attrs:
        reduced(case)
        return
    for d in reduced(case):
        case.mask(0, d, 0.0)


@rule("var", "std", "var_mean", "std_mean", "aminmax")
def folded(case: Case) -> None:
    reduced(case)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(case: Case) -> None:
    rows(case, 0)
    if case.tensors[0].dtype.is_floating:
        case.mask(0, case.axis(1), -inf)
    else:
        rows(case, 0, case.axis(1))


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(case: Case) -> None:
    axis = case.axis(2)
    for number in (0, 1):
        rows(case, number)
        case.mask(number, axis, 0.0)


# --- products -----------------------------------------------------------------------------------------------------

_PRODUCTS = {"mm": "ik,kj->ij", "bmm": "bik,bkj->bij", "mv": "ik,k->i", "dot": "k,k->", "vdot": "k,k->"}
_ADDED_PRODUCTS = {"addmm": "mm", "baddbmm": "bmm", "addmv": "mv"}


@rule(*_PRODUCTS, *_ADDED_PRODUCTS)
def product(case: Case) -> None:
    """Rows and columns follow; a padded contraction is masked on both sides, for nothing times infinity is no zero."""
    first = 1 if case.name in _ADDED_PRODUCTS else 0
    left, right = _PRODUCTS[_ADDED_PRODUCTS.get(case.name, case.name)].split(",")
    right, result = right.split("->")
    if first:
        alongside(case, 0, len(result))
    for number, letters in ((first, left), (first + 1, right)):
        case.follow(number, [result.index(letter) if letter in result else None for letter in letters])
        for d, letter in enumerate(letters):
            if letter not in result:
                case.mask(number, d, 0 if not case.tensors[number].dtype.is_floating else 0.0)
    _contracts_alike(case, first, left, right)


def _contracts_alike(case: Case, first: int, left: str, right: str) -> None:
    for letter in set(left) & set(right):
        a, b = case.tensors[first].dims[left.index(letter)], case.tensors[first + 1].dims[right.index(letter)]
        if not extent.alike(a, b):
            raise NotProven("contracts dimensions whose padding lies differently")


@rule("linear")
def linear(case: Case) -> None:
    rank = case.tensors[0].rank
    case.follow(0, [*range(rank - 1), None])


@rule("convolution")
def convolution(case: Case) -> None:
    """Pixels follow where every window lies inside the true ones: no padding of the op's own, not transposed."""
    window = case.tensors[0].rank - 2
    own = case.integers(4)
    case.follow(0, [0, None, *([None] * window)])
    if case.op.operand(6) is False and len(own) in (1, window):
        for d in case.tensors[0].padded:
            if d >= 2 and own[(d - 2) % len(own)] == 0 and len(case.tensors[0].dims[d]) == 1:
                case.vouch(0, d)
                case.claim(d)


@rule("convolution_backward")
def convolution_backward(case: Case) -> None:
    """The batch follows into the gradient of the input, and is summed into those of weight and bias."""
    for number in (0, 1):
        case.follow(number, [0, *([None] * (case.tensors[number].rank - 1))])
        case.mask(number, 0, 0.0)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention(case: Case) -> None:
    """Batch, heads and queries follow; padded keys and values are zero, and no true query looks at them."""
    case.follow(0, [0, 1, 2, None])
    for number in (1, 2):
        case.follow(number, [0, 1, None, None])
        case.mask(number, 2, 0.0)
    case.broken.add(2)
    _hide_keys(case, 0, case.op.operand(4, False) is True, case.tensors[3:])


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(case: Case) -> None:
    """The same of the gradient; padded queries give nothing to the gradients of keys and values."""
    for number in range(6):  # gradient, query, key, value, result, log-sum-exp
        case.follow(number, [0, 1, 2, None][: case.tensors[number].rank])
        case.mask(number, 2, 0.0)
    _hide_keys(case, 1, case.op.operand(7, False) is True, case.tensors[6:])


def _hide_keys(case: Case, query: int, causal: bool, given: Sequence[Tensor]) -> None:
    """Padded keys get no weight: they come after every true query, or the mask says so."""
    keys = case.tensors[query + 1].dims[2]
    for number, tensor in enumerate(given, len(case.tensors) - len(given)):  # [..., queries, keys]
        rank = tensor.rank
        case.follow(number, [d + 4 - rank if d != rank - 1 else None for d in range(rank)])
        if rank and tensor.dtype.is_floating:
            case.mask(number, rank - 1, -inf)
    if not extent.is_padded(keys) or (causal and extent.alike(case.tensors[query].dims[2], keys)):
        return
    if not given:
        case.hidden = (query + 1, 2)
    elif not given[0].rank or not given[0].dtype.is_floating or not extent.is_padded(given[0].dims[-1]):
        raise NotProven("has a mask that does not tell padded keys from true ones")


# --- normalisations -----------------------------------------------------------------------------------------------


@rule("native_layer_norm")
def layer_norm(case: Case) -> None:
    rank = case.tensors[0].rank
    rows(case, 0, *range(rank - len(case.integers(1)), rank))


@rule("native_layer_norm_backward")
def layer_norm_backward(case: Case) -> None:
    """Rows follow into the gradient of the input, and are summed into those of weight and bias."""
    rank = case.tensors[0].rank
    outer = rank - len(case.integers(2))
    for number in range(4):  # gradient, input, mean, rstd
        case.follow(number, [d if d < outer else None for d in range(case.tensors[number].rank)])
        for d in range(outer):
            case.mask(number, d, 0.0)


@rule("native_group_norm", sizes=(3,))
def group_norm(case: Case) -> None:
    case.follow(0, [0, *([None] * (case.tensors[0].rank - 1))])


@rule("native_group_norm_backward", sizes=(5,))
def group_norm_backward(case: Case) -> None:
    for number in range(4):
        case.follow(number, [0, *([None] * (case.tensors[number].rank - 1))])
        case.mask(number, 0, 0.0)


@rule("_native_batch_norm_legit_no_training")
def batch_norm(case: Case) -> None:
    rows(case, 0, 1)


# --- losses -------------------------------------------------------------------------------------------------------


@rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(case: Case) -> None:
    """Padded targets are those that the loss ignores."""
    data, target = case.number(0), case.number(1)
    none, ignored = case.integer(3) == 0, case.integer(4, -100)
    if case.tensors[data].rank < 2:
        return
    case.follow(data, [0, None, *range(1, case.tensors[data].rank - 1)] if none else [None] * case.tensors[data].rank)
    case.follow(target, range(case.tensors[target].rank) if none else [None] * case.tensors[target].rank)
    if none:
        case.no_reader(1)
        case.in_range(target, ignored)
        return
    for d in range(case.tensors[target].rank):
        case.mask(target, d, ignored)
        case.mask(data, d if d == 0 else d + 1, 0.0)


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(case: Case) -> None:
    gradient, data, target = (case.number(i) for i in range(3))
    if case.tensors[data].rank < 2:
        return
    spread = [0, *range(2, case.tensors[data].rank)]
    rows(case, data, 1)
    case.follow(target, spread)
    if case.tensors[gradient].rank:
        case.follow(gradient, spread)
    case.in_range(target, case.integer(5, -100))


# --- along one dimension ------------------------------------------------------------------------------------------


@rule("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
def scan(case: Case) -> None:
    """Element i reads elements up to i, one after the other: the true ones come first."""
    rows(case, 0)
    axis = case.axis(1)
    case.broken.add(axis)
    if case.tensors[0].rank and len(extent.canonical(case.tensors[0].dims[axis])) > 1:
        rows(case, 0, axis)


@rule("sort", "topk", "kthvalue", "flip", "roll", "glu", "mode", "median", "nanmedian")
def whole_lines(case: Case) -> None:
    """Lines along some dimensions are read whole; the others follow."""
    position = {"topk": 2, "kthvalue": 2, "roll": 2}.get(case.name, 1)
    if case.op.kind in ("aten.median.default", "aten.nanmedian.default"):
        return
    if case.op.kind == "aten.sort.stable":
        given = case.op.attr("dim", -1)
        dims: tuple[int, ...] = (given,) if isinstance(given, int) else ()
    else:
        dims = case.integers(position, () if case.name == "roll" else (-1,))
    rank = case.tensors[0].rank
    across = {d % max(1, rank) for d in dims} if dims else set(range(rank))
    keeps_rank = case.name in ("sort", "topk", "glu", "flip", "roll")
    if keeps_rank or case.op.type.elements[0].rank == rank:  # type: ignore[union-attr]
        rows(case, 0, *across)


def _spatial(dimensions: int) -> Rule:
    def leading(case: Case) -> None:
        """Images are worked on one by one: what comes before the pixels follows."""
        for number, tensor in enumerate(case.tensors):
            across = range(max(0, tensor.rank - dimensions), tensor.rank)
            rows(case, number, *across)

    return leading


for _dimensions in (1, 2, 3):
    _IMAGES = [f"{name}{_dimensions}d" for name in (
        "avg_pool", "_adaptive_avg_pool", "adaptive_max_pool", "upsample_nearest", "_upsample_nearest_exact",
        "reflection_pad", "replication_pad", "upsample_bicubic", "upsample_bilinear", "upsample_linear",
        "upsample_trilinear",
    )]  # fmt: skip
    _BACKWARD = [f"{name}_backward" for name in _IMAGES if not name.startswith(("up", "_up"))]
    rule(*_IMAGES, *_BACKWARD, f"max_pool{_dimensions}d_with_indices", f"max_pool{_dimensions}d_with_indices_backward")(
        _spatial(_dimensions)
    )
