"""compile_exported: the values, changes, draws, aliases and refusals of ExportedProgram.module()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exported_programs import CASES, Case, export, results
from torch import nn
from torch.export import Dim
from torch.testing import assert_close

import neuron_compiler
from neuron_compiler.errors import ArtifactError, CaptureError, RuntimeFault, UnsupportedOp
from neuron_compiler.ledger import LEDGER

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_values_are_those_of_the_exported_module(case: Case) -> None:
    eager, program = export(case), export(case)
    compiled = neuron_compiler.compile_exported(program)
    assert_close(results(compiled, case), results(eager.module(), case), rtol=1e-4, atol=1e-5)
    # What it changes are its program's buffers, and all of them.
    assert_close(dict(program.state_dict), dict(eager.state_dict), rtol=1e-4, atol=1e-5)
    assert (LEDGER.total("fallback") > 0) == (case.fallbacks > 0)


def test_aliases_are_those_of_the_exported_module() -> None:
    case = CASES["state"]
    program = export(case)
    compiled = neuron_compiler.compile_exported(program)
    args = case.args()
    x, cache, _ = compiled(*args)
    assert x is args[0]
    assert cache is compiled.weights["cache"] is program.constants["cache"]
    nested = neuron_compiler.compile_exported(export(CASES["nested"]))
    given = CASES["nested"].args()
    assert nested(*given, **CASES["nested"].kwargs())["same"] is given[0]["a"]
    x, empty = CASES["halves"].args()
    right, turned, *_ = neuron_compiler.compile_exported(export(CASES["halves"]))(x, empty)
    assert right.data_ptr() == x[:, 1:].data_ptr()
    assert turned.data_ptr() == x.data_ptr()


def test_weights_are_shared_with_the_module() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    compiled = neuron_compiler.compile_exported(torch.export.export(model, (x,)))
    with torch.no_grad():
        model.weight.mul_(3)
    assert_close(compiled(x), model(x).detach())
    assert not compiled(x).requires_grad


def test_the_exported_program_stays_as_it_was() -> None:
    program = export(CASES["state"])
    before = str(program)
    neuron_compiler.compile_exported(program)
    assert str(program) == before


def test_one_program_for_each_size_and_no_more() -> None:
    case = CASES["convolutions_of_any_batch"]
    compiled = neuron_compiler.compile_exported(export(case))
    results(compiled, case)
    results(compiled, case)
    assert LEDGER.total("compile") == 3


def _nested() -> tuple[Any, Any]:
    case = CASES["nested"]
    return neuron_compiler.compile_exported(export(case)), case


def test_a_dictionary_may_have_its_keys_in_any_order() -> None:
    class Two(nn.Module):
        def forward(self, x: dict[str, torch.Tensor], *, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return x["p"] - 2 * x["q"] + a - 3 * b

    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    compiled = neuron_compiler.compile_exported(
        torch.export.export(Two(), ({"p": one, "q": two},), {"a": one, "b": two})
    )
    assert compiled({"q": two, "p": one}, b=two, a=one).tolist() == [-8.0]


WRONG = {
    "too few": (lambda x, p: ((x,), {"times": 4, "unused": None}), "1 argument by position"),
    "another name": (lambda x, p: ((x, p), {"time": 4, "unused": None}), "time"),
    "another value": (lambda x, p: ((x, p), {"times": 5, "unused": None}), "argument times is 5"),
    "a value of another type": (lambda x, p: ((x, p), {"times": 4.0, "unused": None}), "argument times is 4.0"),
    "something for nothing": (lambda x, p: ((x, p), {"times": 4, "unused": 1}), "argument unused is 1"),
    "another key": (lambda x, p: (({"b": x["a"]}, p), {"times": 4, "unused": None}), "nested otherwise"),
    "a tuple for a list": (lambda x, p: ((x, tuple(p)), {"times": 4, "unused": None}), "nested otherwise"),
    "no tensor": (lambda x, p: (({"a": 3}, p), {"times": 4, "unused": None}), r"argument 0\['a'\] is int"),
    "another size": (lambda x, p: (({"a": x["a"][:1]}, p), {"times": 4, "unused": None}), r"sizes \[1, 3\]"),
    "another rank": (lambda x, p: (({"a": x["a"][0]}, p), {"times": 4, "unused": None}), r"sizes \[3\]"),
    "another type": (lambda x, p: (({"a": x["a"].double()}, p), {"times": 4, "unused": None}), "float64"),
    "a sparse tensor": (lambda x, p: (({"a": x["a"].to_sparse()}, p), {"times": 4, "unused": None}), "no plain"),
    "another device": (lambda x, p: (({"a": x["a"].to("meta")}, p), {"times": 4, "unused": None}), "lies on meta"),
    "a gradient": (
        lambda x, p: (({"a": x["a"].requires_grad_()}, p), {"times": 4, "unused": None}),
        "requires a gradient",
    ),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG.keys())
def test_arguments_that_it_was_not_exported_for_are_refused(call: Any, message: str) -> None:
    compiled, case = _nested()
    args, kwargs = call(*case.args())
    with pytest.raises(RuntimeFault, match=message):
        compiled(*args, **kwargs)


def test_sizes_are_held_to_ranges_relations_and_guards() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return (x + y[: x.shape[0]]).sum(0) + z.reshape(-1, 3).sum()

    rows = Dim("rows", min=4, max=16)
    program = torch.export.export(
        Pair(),
        (torch.ones(8, 2), torch.ones(9, 2), torch.ones(6)),
        dynamic_shapes=({0: rows}, {0: rows + 1}, {0: Dim.AUTO}),
    )
    compiled = neuron_compiler.compile_exported(program)
    assert compiled(torch.ones(4, 2), torch.ones(5, 2), torch.ones(9)).tolist() == [17.0] * 2
    for sizes, message in (
        ((8, 8, 6), r"has 8 where the program has .* with"),
        ((18, 19, 6), "takes from 4 to 16"),
        ((2, 3, 6), "takes from 4 to 16"),
        ((7, 8, 4), r"argument 2.size\(0\)"),
    ):
        with pytest.raises(RuntimeFault, match=message):
            compiled(torch.ones(sizes[0], 2), torch.ones(sizes[1], 2), torch.ones(sizes[2]))


def test_a_size_that_no_dimension_states_is_solved_for() -> None:
    case = CASES["derived_size"]
    compiled = neuron_compiler.compile_exported(export(case))
    with pytest.raises(RuntimeFault, match=r"has size 7 at dimension 0, which is no 2\*s"):
        compiled(torch.randn(7, 8).bfloat16())


def test_a_check_of_the_program_raises_as_pytorch_does() -> None:
    compiled = neuron_compiler.compile_exported(export(CASES["looked"]))
    with pytest.raises(IndexError):
        compiled(torch.randn(5, 2), torch.tensor([0, 1, 5]))
    inverse = neuron_compiler.compile_exported(export(CASES["inverse"]))
    with pytest.raises(torch.linalg.LinAlgError):
        inverse(torch.zeros(4, 4))


def test_strict_is_respected() -> None:
    with pytest.raises(UnsupportedOp, match="cond"):
        neuron_compiler.compile_exported(export(CASES["drawing branches"]), options={"strict": True})
    neuron_compiler.compile_exported(export(CASES["drawing"]), options={"strict": True})


def test_a_write_through_an_expanded_view_is_refused() -> None:
    class Expanded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y.expand(2, 3).add_(1)
            return y

    program = torch.export.export(Expanded(), (torch.zeros(1, 3),))
    with pytest.raises(UnsupportedOp, match="expanded view"):
        neuron_compiler.compile_exported(program)


def test_a_loss_that_tracing_gets_wrong_is_right() -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.multilabel_margin_loss(x, y)

    args = (torch.tensor([[0.1, 0.2, 0.4, 0.8]]), torch.tensor([[3, 0, -1, 1]]))
    program = torch.export.export(Loss(), args)
    assert_close(neuron_compiler.compile_exported(program)(*args), Loss()(*args))


def test_a_script_object_is_refused() -> None:
    program = export(CASES["low"])
    spec = program.graph_signature.input_specs[0]
    spec.kind = torch.export.graph_signature.InputKind.CUSTOM_OBJ
    with pytest.raises(CaptureError, match="script object 'linear.weight'"):
        neuron_compiler.compile_exported(program)


def test_what_is_no_exported_program_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"Linear is no exported program(.|\n)*torch\.export"):
        neuron_compiler.compile_exported(nn.Linear(2, 2))  # type: ignore[arg-type]
