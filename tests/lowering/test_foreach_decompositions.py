"""Every ``_foreach_*`` decomposition gives what ATen's kernel gives; a compiled optimizer step runs whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_compiler.lowering.decompositions import table
from neuron_compiler.lowering.foreach_decompositions import DECOMPOSITIONS

CASES = {str(overload): overload for overload in DECOMPOSITIONS}


def _tensors(seed: int, count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(2, i + 1, generator=generator) + 0.5 for i in range(count)]


def _argument(name: str, kind: str, index: int) -> Any:
    if kind == "List[Tensor]":
        return _tensors(index)
    if "List[" in kind:
        return [0.5, 1.5, 2.5]
    if kind == "Tensor":
        return torch.tensor([0.5, 1.5, 2.5]) if name == "scalars" else torch.tensor(1.5)
    return 1.5


def _arguments(overload: Any) -> list[Any]:
    required = [a for a in overload._schema.arguments if not a.has_default_value()]
    return [_argument(a.name, str(a.type), i) for i, a in enumerate(required)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_decomposition_gives_what_aten_gives(name: str) -> None:
    overload = CASES[name]
    arguments = _arguments(overload)
    if "_mm" in name:
        arguments = [_tensors(0), [x.t().contiguous() for x in _tensors(1)]]
    wanted, got = overload(*arguments), DECOMPOSITIONS[overload](*arguments)
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_scale_of_a_sum_is_kept() -> None:
    x, y = _tensors(0), _tensors(1)
    overload = torch.ops.aten._foreach_sub.List
    for mine, theirs in zip(DECOMPOSITIONS[overload](x, y, alpha=2), overload(x, y, alpha=2), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_every_foreach_op_on_numbers_is_decomposed() -> None:
    names = {n.split("::")[1].split(".")[0] for n in torch._C._dispatch_get_all_op_names() if "::_foreach_" in n}
    functional = {n for n in names if not n.endswith("_") and "_native_" not in n}
    covered = {str(o).split(".")[1] for o in table()}
    assert functional <= covered


def test_optimizer_step_compiles_whole() -> None:
    from neuron_compiler.ledger import LEDGER

    def run(compiled: bool) -> list[torch.Tensor]:
        parameters = [torch.nn.Parameter(x) for x in _tensors(0)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
        step = torch.compile(optimizer.step, backend="neuron") if compiled else optimizer.step
        for _ in range(2):
            for p in parameters:
                p.grad = p.detach() * 2 - 1
            step()
        return [p.detach() for p in parameters]

    eager = run(False)
    LEDGER.clear()
    ours = run(True)
    assert LEDGER.total("fallback") == 0
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs)
