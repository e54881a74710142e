"""The Graph's data: exact equality, uses, substitution, types by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from neuron_compiler.ir.graph import (
    Constant,
    DType,
    Graph,
    Input,
    Op,
    Operand,
    TensorType,
    TupleType,
    Value,
    exact,
    substitute,
    values_of,
)

F32 = DType.F32
T = TensorType((4, 8), F32)


def op(*operands: Operand, **attrs: Operand) -> Op:
    return Op("r", "a.b.c", operands, T, tuple(sorted(attrs.items())))


ALIKE_IN_PYTHON: list[tuple[Operand, Operand]] = [
    (1, 1.0),
    (1, True),
    (0, False),
    (0.0, -0.0),
    (0.0, 0),
    (1.0, complex(1)),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    ((1, (2,)), (1, (2.0,))),
]


@pytest.mark.parametrize(("a", "b"), ALIKE_IN_PYTHON)
def test_operands_that_python_takes_for_equal_are_not(a: Operand, b: Operand) -> None:
    assert a == b
    assert exact(a) != exact(b)
    assert op(a) != op(b)
    assert op(k=a) != op(k=b)


def test_a_nan_is_itself() -> None:
    assert op(float("nan")) == op(-math.nan)
    assert hash(op(float("nan"))) == hash(op(math.nan))
    assert op((None, float("nan"))) == op((None, math.nan))
    assert op(complex(math.nan, 1)) == op(complex(math.nan, 1))


def test_an_op_is_its_parts_without_its_location() -> None:
    first = Op("r", "a.b.c", (Value("x"), 1, "s", F32, None), T, (("k", 2),), "model.py:3")
    assert first == replace(first, loc="other.py:4")
    assert hash(first) == hash(replace(first, loc="other.py:4"))
    for other in (
        replace(first, result="q"),
        replace(first, kind="a.b.d"),
        replace(first, operands=first.operands[:-1]),
        replace(first, type=TensorType((8, 4), F32)),
        replace(first, attrs=(("j", 2),)),
    ):
        assert first != other
    assert replace(first, result="q").expression == first.expression
    assert first != "r"


def test_uses_are_in_order_without_repeats() -> None:
    nested = op(Value("b"), (None, Value("a"), (Value("b"),)), k=Value("c"))
    assert nested.uses == ("b", "a", "c")
    assert list(values_of(nested.operands)) == ["b", "a", "b"]
    assert substitute(nested.operands, {"b": "z"}) == (Value("z"), (None, Value("a"), (Value("z"),)))


def test_operands_and_attributes_by_place_and_name() -> None:
    one = op(Value("x"), 3, alpha=2)
    assert one.operand(1) == 3
    assert one.operand(2) is None
    assert one.operand(2, 7) == 7
    assert one.attr("alpha") == 2
    assert one.attr("beta", 1) == 1


def test_types_are_known_by_name() -> None:
    split = Op("s", "aten.split.Tensor", (Value("x"), 4, 1), TupleType((T, None)))
    use = Op("y", "aten.add.Tensor", (Value("x"), Value("c")), T)
    graph = Graph("g", (Input("x", T),), (split, use), ("y",), (Constant("c", T, bytes(128)),))
    assert dict(graph.types) == {"x": T, "c": T, "s": split.type, "y": T}
    assert graph.defs == {"s": split, "y": use}
    assert graph.users == {"x": (split, use), "c": (use,)}
    assert graph.tensor_type("x") == T
    with pytest.raises(TypeError, match=r"%s is a tuple \(f32\[4,8\], none\), not a tensor"):
        graph.tensor_type("s")


def test_an_origin_is_no_part_of_equality() -> None:
    assert Input("x", T, "L['x']") == Input("x", T)


@pytest.mark.parametrize(
    ("dtype", "size", "floating", "integer", "complex_"),
    [
        (DType.BOOL, 1, False, False, False),
        (DType.U8, 1, False, True, False),
        (DType.I64, 8, False, True, False),
        (DType.F8E4M3FN, 1, True, False, False),
        (DType.BF16, 2, True, False, False),
        (DType.F64, 8, True, False, False),
        (DType.C128, 16, False, False, True),
    ],
)
def test_element_types(dtype: DType, size: int, floating: bool, integer: bool, complex_: bool) -> None:
    assert (dtype.itemsize, dtype.is_floating, dtype.is_integer, dtype.is_complex) == (
        size,
        floating,
        integer,
        complex_,
    )
    assert TensorType((2, 3), dtype).nbytes == 6 * size


def test_a_type_prints_as_in_the_text_form() -> None:
    assert str(T) == "f32[4,8]"
    assert str(TensorType((), DType.I64)) == "i64[]"
    assert str(TupleType((T, None))) == "(f32[4,8], none)"
    assert (T.rank, T.numel, TensorType((2, 0), F32).numel) == (2, 32, 0)
