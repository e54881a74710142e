"""Small programs, many at a time, through ``torch.compile(backend="neuron")`` against eager: equal to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Programs = Mapping[str, Callable[..., Any]]


def compiled(function: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    """The function in one graph, no op of it left to eager."""
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic, options={"strict": True})


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal elements, zeros by their sign; any NaN for any NaN."""
    if got.is_complex():
        got, want = (torch.view_as_real(x.resolve_conj()) for x in (got, want))
    if not got.is_floating_point():
        return bool(torch.equal(got, want))
    nan = got.isnan() & want.isnan()
    return bool((((got == want) & (got.signbit() == want.signbit())) | nan).all())


def difference(got: Any, want: Any) -> str:
    """What of a result is not as eager's; empty where all is."""
    if not isinstance(want, torch.Tensor):
        return "" if type(got) is type(want) and got == want else f"{got!r} instead of {want!r}"
    if not isinstance(got, torch.Tensor):
        return f"{got!r} instead of a tensor"
    for what in ("dtype", "shape", "device", "requires_grad"):
        if (a := getattr(got, what)) != (b := getattr(want, what)):
            return f"{what} {a} instead of {b}"
    steps = [[s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1] if x.numel() else [] for x in (got, want)]
    if steps[0] != steps[1]:
        return f"strides {got.stride()} instead of {want.stride()}"
    return "" if same_bits(got.detach(), want.detach()) else f"{got!r} instead of {want!r}"


def _run(functions: Sequence[Callable[..., Any]], copies: Sequence[Sequence[Any]]) -> list[Any]:
    return [function(*arguments) for function, arguments in zip(functions, copies, strict=True)]


def assert_agree(programs: Programs, *arguments: Any, dynamic: bool | None = None) -> None:
    """Compile all programs as one, each on copies of its own; results and changed arguments are eager's to the bit.

    Args:
        programs: by the name that a failure shows.
        arguments: of every program; tensors that share memory share it in each copy.
        dynamic: as of ``torch.compile``.
    """
    functions = list(programs.values())
    given, wanted = ([copy.deepcopy(arguments) for _ in functions] for _ in range(2))
    want = _run(functions, wanted)
    # A new function object each time: Dynamo counts recompilations by code.
    got = compiled(lambda copies: _run(functions, copies), dynamic)(given)
    found = []
    for name, *pairs in zip(programs, got, want, given, wanted, strict=True):
        for what, a, b in (("result", *pairs[:2]), ("argument after the call", *pairs[2:])):
            leaves = [pytree.tree_leaves(x) for x in (a, b)]
            if len(leaves[0]) != len(leaves[1]):
                found.append(f"{name}: {len(leaves[0])} {what}s instead of {len(leaves[1])}")
            for index, (x, y) in enumerate(zip(*leaves, strict=False)):
                if wrong := difference(x, y):
                    found.append(f"{name}: {what} {index}: {wrong}")
    assert not found, "\n".join(found)
