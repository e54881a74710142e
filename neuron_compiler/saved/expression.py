"""Expressions of whole numbers: sizes such as ``2*s0`` and conditions such as ``s0 % 8 == 0``.

In: Python text of a small vocabulary, and numbers by name. Out: a number. Invariant: text from a file is walked, never
evaluated by Python; a word outside the vocabulary is an error when it is read.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from neuron_compiler.errors import ArtifactError

Numbers = Mapping[str, Any]
Function = Callable[[Numbers], Any]

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARED: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_CALLED: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": bool,
    "float": float,
    "int": int,
    "max": max,
    "min": min,
    "round": round,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.isnan": math.isnan,
    "math.sqrt": math.sqrt,
    "math.trunc": math.trunc,
}
MAX_POWER = 64
"""Highest exponent: no size needs more, and a file cannot ask for a number without end."""


@cache
def parse(text: str) -> Function:
    """The expression as a function of the numbers of its names; raises ArtifactError for what is none."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArtifactError(f"{text[:200]!r} is no expression of sizes: {error}") from None
    return _function(tree.body, text)


def evaluate(text: str, numbers: Numbers) -> Any:
    """The number of an expression."""
    return parse(text)(numbers)


def _function(node: ast.AST, text: str) -> Function:
    match node:
        case ast.Constant(value=int() | float() | bool() as value):
            return lambda numbers: value
        case ast.Name(id="inf"):
            return lambda numbers: math.inf
        case ast.Name(id=name):
            return lambda numbers: numbers[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            one, apply = _function(operand, text), _UNARY[type(op)]
            return lambda numbers: apply(one(numbers))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 <= power <= MAX_POWER:
            base = _function(left, text)
            return lambda numbers: base(numbers) ** power
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b, combine = _function(left, text), _function(right, text), _BINARY[type(op)]
            return lambda numbers: combine(a(numbers), b(numbers))
        case ast.BoolOp(op=op, values=values):
            parts, every = [_function(value, text) for value in values], isinstance(op, ast.And)
            return lambda numbers: (all if every else any)(part(numbers) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARED for op in ops):
            terms = [_function(term, text) for term in (left, *rights)]
            tests = [_COMPARED[type(op)] for op in ops]

            def compare(numbers: Numbers) -> bool:
                values = [term(numbers) for term in terms]
                return all(test(a, b) for test, a, b in zip(tests, values, values[1:], strict=False))

            return compare
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, yes, no = (_function(part, text) for part in (test, body, orelse))
            return lambda numbers: yes(numbers) if condition(numbers) else no(numbers)
        case ast.Call(func=func, args=args, keywords=[]) if (called := _CALLED.get(ast.unparse(func))) is not None:
            given = [_function(arg, text) for arg in args]
            return lambda numbers: called(*(arg(numbers) for arg in given))
    raise ArtifactError(f"{ast.unparse(node)!r} in the expression of sizes {text[:200]!r} is not known")
