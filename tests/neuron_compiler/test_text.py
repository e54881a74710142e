"""The text form: what it looks like, that it reads back to the bit, and what its errors show."""

from __future__ import annotations

import math
import struct
from types import MappingProxyType

import hypothesis.strategies as st
import pytest
from expecttest import assert_expected_inline
from hypothesis import given, settings

from neuron_compiler.errors import ParseError
from neuron_compiler.ir import elements, text
from neuron_compiler.ir.graph import Constant, DType, Graph, Input, Op, Operand, TensorType, TupleType, Value
from neuron_compiler.ir.plan import Barrier, Group, GroupKind, Plan, Program, Tile

F32 = DType.F32


def mlp() -> Program:
    type_ = TensorType((4, 8), F32)
    ops = (
        Op("0", "aten.exp.default", (Value("x"),), type_, loc="model.py:14"),
        Op("2", "aten.add.Tensor", (Value("0"), Value("x")), type_, (("alpha", 2),), "model.py:15"),
    )
    plan = Plan(
        (Group("g0_exp", GroupKind.ELEMENTWISE, ("0",)), Group("g1_add", GroupKind.ELEMENTWISE, ("2",))),
        (Barrier("g0_exp", "g1_add", "0", 'read by "others" too'),),
        MappingProxyType(
            {"g1_add": Tile(4, 8, 0, (4, 8, 0), 1, 384, 0), "g0_exp": Tile(2, 8, 0, (4, 8, 0), 1, 128, 0)}
        ),
    )
    return Program(Graph("mlp", (Input("x", type_),), ops, ("2", "2")), plan, "trn3")


def test_a_program_looks_like_this() -> None:
    assert_expected_inline(
        str(mlp()),
        """\
graph mlp(%x: f32[4,8]) target=trn3 {
  %0 = aten.exp.default(%x) : f32[4,8]  # model.py:14
  %2 = aten.add.Tensor(%0, %x, alpha=2) : f32[4,8]  # model.py:15
  return %2, %2
}
plan {
  group g0_exp elementwise (%0)
  group g1_add elementwise (%2)
  barrier g0_exp -> g1_add %0 "read by \\"others\\" too"
  tile g0_exp partition=2 free=8 contraction=0 space=[4, 8, 0] batch=1 sbuf_bytes=128 psum_bytes=0
  tile g1_add partition=4 free=8 contraction=0 space=[4, 8, 0] batch=1 sbuf_bytes=384 psum_bytes=0
}
""",
    )


def branches() -> Program:
    """A branch within a branch, with a constant and locations."""
    vector, flag = TensorType((4,), F32), TensorType((), DType.BOOL)
    half = Constant("half", TensorType((), F32), struct.pack("<f", 0.5))
    scaled = Op("0", "aten.mul.Tensor", (Value("a"), Value("half")), vector, loc="model.py:3")
    inner = Graph("inner", (Input("a", vector),), (scaled,), ("0",), (half,))
    given = (Value("p"), inner, inner, (Value("a"),))
    outer = Graph(
        "outer",
        (Input("a", vector), Input("p", flag)),
        (
            Op("0", "higher_order.cond", given, TupleType((vector,)), loc="model.py:4"),
            Op("1", "getitem", (Value("0"), 0), vector),
        ),
        ("1",),
    )
    other = Graph("other", (Input("a", vector), Input("p", flag)), (), ("a",))
    given = (Value("p"), outer, other, (Value("x"), Value("p")))
    ops = (
        Op("0", "higher_order.cond", given, TupleType((vector,)), loc="model.py:5"),
        Op("1", "getitem", (Value("0"), 0), vector),
    )
    return Program(Graph("main", (Input("x", vector), Input("p", flag)), ops, ("1",)))


def test_subgraphs_stand_at_their_operands_place() -> None:
    program = branches()
    assert_expected_inline(
        str(program),
        """\
graph main(%x: f32[4], %p: bool[]) target=trn2 {
  %0 = higher_order.cond(%p, graph outer(%a: f32[4], %p: bool[]) {
    %0 = higher_order.cond(%p, graph inner(%a: f32[4]) {
      const %half: f32[] = [0.5]
      %0 = aten.mul.Tensor(%a, %half) : f32[4]  # model.py:3
      return %0
    }, graph inner(%a: f32[4]) {
      const %half: f32[] = [0.5]
      %0 = aten.mul.Tensor(%a, %half) : f32[4]  # model.py:3
      return %0
    }, [%a]) : (f32[4])  # model.py:4
    %1 = getitem(%0, 0) : f32[4]
    return %1
  }, graph other(%a: f32[4], %p: bool[]) {
    return %a
  }, [%x, %p]) : (f32[4])  # model.py:5
  %1 = getitem(%0, 0) : f32[4]
  return %1
}
""",
    )
    assert text.parse(str(program)) == program
    assert text.parse(str(program).replace("0.5", "0.25")) != program


def test_a_graph_alone_has_no_target_and_no_plan() -> None:
    graph = mlp().graph
    assert str(graph).splitlines()[0] == "graph mlp(%x: f32[4,8]) {"
    assert text.parse(str(graph)) == Program(graph)
    assert str(graph.ops[1]) == "%2 = aten.add.Tensor(%0, %x, alpha=2) : f32[4,8]"


def test_origins_and_long_signatures_take_a_line_an_input() -> None:
    vector = TensorType((8,), F32)
    graph = Graph(
        "g", (Input("x", vector, "L['x']"), Input("w", vector, "L['self'].fc.weight"), Input("y", vector)), (), ("x",)
    )
    assert_expected_inline(
        str(graph),
        """\
graph g(
  %x: f32[8],  # L['x']
  %w: f32[8],  # L['self'].fc.weight
  %y: f32[8],
) {
  return %x
}
""",
    )
    assert [i.origin for i in text.parse(str(graph)).graph.inputs] == ["L['x']", "L['self'].fc.weight", ""]
    many = Graph("g", tuple(Input(f"input_{i}", vector) for i in range(10)), (), ())
    assert len(str(many).splitlines()) == 14
    assert text.parse(str(many)).graph == many


OPERANDS: dict[str, Operand] = {
    "%x": Value("x"),
    '%"a b"': Value("a b"),
    "none": None,
    "true": True,
    "false": False,
    "-7": -7,
    "123456789012345678901": 123456789012345678901,
    "1.0": 1.0,
    "1e-05": 1e-05,
    "-0.0": -0.0,
    "nan": math.nan,
    "-inf": -math.inf,
    "complex(-0.0, 1.5)": complex(-0.0, 1.5),
    "complex(nan, -inf)": complex(math.nan, -math.inf),
    '"say \\"hi\\"\\n"': 'say "hi"\n',
    '"f32"': "f32",
    '""': "",
    "f32": F32,
    "f8e4m3fn": DType.F8E4M3FN,
    "bool": DType.BOOL,
    "[]": (),
    "[none, %i]": (None, Value("i")),
    "[[1], [2.0, [true]]]": ((1,), (2.0, (True,))),
}


@pytest.mark.parametrize(("shown", "operand"), OPERANDS.items())
def test_an_operand_is_shown_and_read(shown: str, operand: Operand) -> None:
    assert text.format_operand(operand) == shown
    op = Op("r", "a.b.c", (operand, operand), TensorType((), F32), (("k", operand), ("odd name", operand)))
    program = Program(Graph("g", (), (op,), ()))
    back = text.parse(str(program))
    assert back == program
    assert repr(back.graph.ops[0].operands) == repr(op.operands)


def test_what_is_no_operand_cannot_be_shown() -> None:
    with pytest.raises(TypeError, match=r"\[1\] of type list cannot be an operand"):
        text.format_operand([1])  # type: ignore[arg-type]


CONSTANTS: dict[str, tuple[DType, bytes]] = {
    "f32[2] = [0.1, -0.0]": (F32, struct.pack("<2f", 0.1, -0.0)),
    "f32[3] = [nan, inf, 1e-45]": (F32, struct.pack("<3f", math.nan, math.inf, 1e-45)),
    'f32[1] = hex"010080ff"': (F32, bytes.fromhex("010080ff")),
    "f32[1] = [3.4028235e+38]": (F32, bytes.fromhex("ffff7f7f")),
    "f64[1] = [0.1]": (DType.F64, struct.pack("<d", 0.1)),
    "f16[2] = [0.1, 65504.0]": (DType.F16, struct.pack("<2e", 0.1, 65504.0)),
    "bf16[2] = [1.0, 0.1]": (DType.BF16, bytes.fromhex("803fcd3d")),
    'f8e4m3fn[2] = hex"3840"': (DType.F8E4M3FN, bytes.fromhex("3840")),
    "i64[2] = [-1, 9223372036854775807]": (DType.I64, struct.pack("<2q", -1, 2**63 - 1)),
    "u8[2] = [0, 255]": (DType.U8, b"\0\xff"),
    "bool[2] = [true, false]": (DType.BOOL, b"\1\0"),
    'bool[1] = hex"02"': (DType.BOOL, b"\2"),
    "c64[1] = [complex(1.0, -0.0)]": (DType.C64, struct.pack("<2f", 1.0, -0.0)),
    'c64[1] = hex"0000803f"': (DType.C64, struct.pack("<f", 1.0)),
    "f32[0] = []": (F32, b""),
}


@pytest.mark.parametrize(("shown", "constant"), CONSTANTS.items())
def test_a_constant_is_shown_by_its_elements_where_that_is_exact(shown: str, constant: tuple[DType, bytes]) -> None:
    dtype, data = constant
    extent = int(shown.partition("[")[2].partition("]")[0])
    program = Program(Graph("g", (), (), ("c",), (Constant("c", TensorType((extent,), dtype), data),)))
    assert str(program).splitlines()[1] == f"  const %c: {shown}"
    assert text.parse(str(program)) == program


def test_a_long_constant_is_bytes() -> None:
    for count, opening in ((16, "[0.0, "), (17, 'hex"0000')):
        constant = Constant("c", TensorType((count,), F32), bytes(4 * count))
        assert str(Graph("g", (), (), (), (constant,))).splitlines()[1].split(" = ")[1].startswith(opening)


def test_people_may_write_freely() -> None:
    program = text.parse("""
        # A comment on a line of its own
        graph g ( %x : f32[ 4, 8 ] , ) { const %c: f32[2] = [1, 2,]
          %0 = aten.exp.default(
              %x,  # not a location
          ) : f32[4,8] # model.py:3
          # nor is this
          return %0 , %x }
        """)
    assert_expected_inline(
        str(program),
        """\
graph g(%x: f32[4,8]) target=trn2 {
  const %c: f32[2] = [1.0, 2.0]
  %0 = aten.exp.default(%x) : f32[4,8]  # model.py:3
  return %0, %x
}
""",
    )


def test_windows_line_ends_are_not_part_of_a_location() -> None:
    program = text.parse(str(mlp()).replace("\n", "\r\n"))
    assert [op.loc for op in program.graph.ops] == ["model.py:14", "model.py:15"]


MISTAKES = {
    "graph g(%x: f32[4]) {\n  %0 = aten.exp(%x) = f32[4]\n}": """\
line 2, column 21: expected ':' after the operands, found '='
      %0 = aten.exp(%x) = f32[4]
                        ^""",
    "graph g(%x: float32[4]) {}": """\
line 1, column 13: unknown element type 'float32'; did you mean 'f32'?
    graph g(%x: float32[4]) {}
                ^""",
    "graph g() {\n\treturn @\n}": """\
line 2, column 9: unexpected character '@'
    \treturn @
    \t       ^""",
    "graph g() { %0 = a.b.c(alpha=1, %x) : f32[] }": """\
line 1, column 33: a positional operand stands after a keyword
    graph g() { %0 = a.b.c(alpha=1, %x) : f32[] }
                                    ^""",
    "graph g() { %0 = a.b.c(None) : f32[] }": """\
line 1, column 24: expected an operand, found 'None'
    graph g() { %0 = a.b.c(None) : f32[] }
                           ^""",
    "graph g() { const %c: u8[1] = [256] return }": """\
line 1, column 31: [256] does not fit u8: ubyte format requires 0 <= number <= 255
    graph g() { const %c: u8[1] = [256] return }
                                  ^""",
    'graph g() { const %c: u8[1] = hex"0" return }': """\
line 1, column 31: non-hexadecimal number found in fromhex() arg at position 1
    graph g() { const %c: u8[1] = hex"0" return }
                                  ^""",
    "graph g() { return": """\
line 1, column 19: expected a value such as %x, found the end of the text
    graph g() { return
                      ^""",
    "graph g() { return } graph h() { return }": """\
line 1, column 22: expected the end of the text, found 'graph'
    graph g() { return } graph h() { return }
                         ^""",
    "graph g() { return } plan { group g elemntwise () }": """\
line 1, column 37: unknown group kind 'elemntwise'; did you mean 'elementwise'?
    graph g() { return } plan { group g elemntwise () }
                                        ^""",
    "graph g() { return } plan { tile g partition=1 fre=2 }": """\
line 1, column 48: 'fre' is given twice or is no field of a tile; did you mean 'free'?
    graph g() { return } plan { tile g partition=1 fre=2 }
                                                   ^""",
    "module {}": """\
line 1, column 1: expected 'graph', found 'module'
    module {}
    ^""",
}


@pytest.mark.parametrize(("source", "message"), MISTAKES.items())
def test_a_mistake_is_shown_where_it_is(source: str, message: str) -> None:
    with pytest.raises(ParseError) as raised:
        text.parse(source)
    assert str(raised.value) == message


def test_elements_that_do_not_fit_are_refused() -> None:
    for dtype, values in ((F32, [1e39]), (DType.BOOL, [1]), (DType.I8, [1.5]), (DType.F8E5M2, [1.0])):
        with pytest.raises(ValueError, match=dtype.value if dtype is not DType.BOOL else "true or false"):
            elements.pack(dtype, values)
    assert elements.unpack(F32, b"abc") is None
    assert elements.unpack(DType.F8E5M2, b"a") is None


@pytest.mark.parametrize(
    ("value", "bits"), [(1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (-math.inf, 0xFF80)]
)
def test_bfloat16_is_rounded_to_nearest_even(value: float, bits: int) -> None:
    assert elements.pack(DType.BF16, [value]) == struct.pack("<H", bits)


# Any program at all, legal or not.

ODD = (
    "",
    " ",
    "a b",
    "a\nb",
    "\r",
    "\\n",
    '"',
    "#",
    "%",
    "é",
    "\u2028",
    "\x00",
    "\U0001f600",
    "f32[2]",
    "->",
    "}",
    "\\",
)
WORDS = ("x", "0", "a.b.c", "_1", "inf", "nan", "none", "true", "f32", "graph", "complex", "return", "hex")
NAMES = st.sampled_from((*WORDS, *ODD))
TEXTS = st.sampled_from(("", "model.py:3", "L['x']", *ODD))
LEAVES = st.one_of(
    st.sampled_from((None, True, False, *DType)),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    TEXTS,
    NAMES.map(Value),
)
OPERANDS_DRAWN = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
TENSOR_TYPES = st.builds(TensorType, st.lists(st.integers(0, 9), max_size=3).map(tuple), st.sampled_from(DType))
TYPES = st.one_of(
    TENSOR_TYPES, st.builds(TupleType, st.lists(st.one_of(st.none(), TENSOR_TYPES), max_size=3).map(tuple))
)
OPS = st.builds(
    Op,
    NAMES,
    NAMES,
    st.lists(OPERANDS_DRAWN, max_size=3).map(tuple),
    TYPES,
    st.lists(st.tuples(NAMES, OPERANDS_DRAWN), max_size=2).map(tuple),
    TEXTS,
)
GRAPHS = st.builds(
    Graph,
    NAMES,
    st.lists(st.builds(Input, NAMES, TENSOR_TYPES, TEXTS), max_size=3).map(tuple),
    st.lists(OPS, max_size=4).map(tuple),
    st.lists(NAMES, max_size=2).map(tuple),
    st.lists(st.builds(Constant, NAMES, TENSOR_TYPES, st.binary(max_size=20)), max_size=2).map(tuple),
)
COUNTS = st.integers(0, 2**40)
TILES = st.builds(Tile, COUNTS, COUNTS, COUNTS, st.tuples(COUNTS, COUNTS, COUNTS), COUNTS, COUNTS, COUNTS)
PLANS = st.builds(
    Plan,
    st.lists(
        st.builds(Group, NAMES, st.sampled_from(GroupKind), st.lists(NAMES, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    st.lists(st.builds(Barrier, NAMES, NAMES, NAMES, TEXTS), max_size=2).map(tuple),
    st.dictionaries(NAMES, TILES, max_size=2).map(MappingProxyType),
)


@settings(max_examples=50)
@given(st.builds(Program, GRAPHS, PLANS, NAMES))
def test_any_program_reads_back(program: Program) -> None:
    shown = str(program)
    back = text.parse(shown)
    assert back == program
    assert str(back) == shown
    assert [op.loc for op in back.graph.ops] == [op.loc for op in program.graph.ops]
    assert [i.origin for i in back.graph.inputs] == [i.origin for i in program.graph.inputs]
    assert text.parse(shown.replace("\n", "\r\n")) == program
