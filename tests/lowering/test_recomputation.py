"""Values that would be dear to make anew are made once: the groups that make them are calls of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler.ir import text
from neuron_compiler.ir.plan import Group, GroupKind, Program
from neuron_compiler.lowering import recomputation
from neuron_compiler.lowering.recomputation import groups_apart


def blocks(count: int, third: str = "neg.default({})") -> Program:
    """Blocks of four ops; of each, two ops of the next one read the result."""
    lines = ["%0 = aten.sin.default(%x) : f32[8]"]
    for i in range(count):
        lines.append(f"%a{i} = aten.mul.Tensor(%{i}, %x) : f32[8]")
        lines.append(f"%b{i} = aten.exp.default(%a{i}) : f32[8]")
        lines.append(f"%c{i} = aten.{third.format(f'%b{i}')} : f32[8]")
        lines.append(f"%{i + 1} = aten.add.Tensor(%c{i}, %{i}) : f32[8]")
    return text.parse("graph g(%x: f32[8]) {\n" + "\n".join(lines) + f"\nreturn %{count}\n}}")


def apart(program: Program) -> list[str]:
    """Results of the groups apart, each op being a group."""
    groups = tuple(Group(op.result, GroupKind.OTHER, (op.result,)) for op in program.graph.ops)
    found = groups_apart(program, groups)
    return [group.name for group in groups if group.name in found]


def test_a_value_is_made_once_where_making_it_takes_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert apart(blocks(20)) == []  # 4 operations a block
    monkeypatch.setattr(recomputation, "MOST_RECOMPUTED", 9)
    # %0 takes 1, %1 takes 5, %2 takes 9, %3 takes 13 and is made once; from there it starts again, at 4.
    assert apart(blocks(8)) == ["3", "6"]


def test_what_xla_keeps_in_memory_is_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputation, "MOST_RECOMPUTED", 9)
    # Each block starts from a sum that is kept, so that its result takes 1 operation more than the last one's.
    assert apart(blocks(8, "cumsum.default({}, 0)")) == []
    assert apart(blocks(12, "cumsum.default({}, 0)")) == ["9"]


class Branches(nn.Module):
    """Four depthwise convolutions and the input itself, as MobileOne adds them up."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False) for _ in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = [norm(convolution(x)) for norm, convolution in zip(self.norms, self.convolutions, strict=False)]
        return torch.relu(sum(branches) + self.norms[-1](x))


def lines_of(depth: int, folder: Path) -> int:
    """Lines of XLA's optimised program of so many blocks, whose result is eager's."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = nn.Sequential(*(Branches(4) for _ in range(depth))).eval(), torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        found = torch.compile(model, backend="neuron", options={"dump": str(folder), "strict": True})(x)
        torch.testing.assert_close(found, model(x))
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("xla_optimised.txt"))


def test_programs_grow_with_the_network_and_no_faster(tmp_path: Path) -> None:
    two, four, six = (lines_of(depth, tmp_path / str(depth)) for depth in (2, 4, 6))
    assert six - four < 1.5 * (four - two)
