"""The report of recompiles: what changed, from what to what, what it cost; and one warning per function."""

from __future__ import annotations

import warnings

import pytest
import torch

import neuron_compiler
from neuron_compiler import neuron, recompile_report
from neuron_compiler.capture import frame
from neuron_compiler.errors import RecompileWarning
from neuron_compiler.report import recompiles


@pytest.fixture(autouse=True)
def nothing_recorded():
    torch._dynamo.reset()
    recompiles.clear()
    yield
    recompiles.clear()


def compiled(model, dynamic=False, **options):
    return torch.compile(model, backend=neuron, dynamic=dynamic, options=options)


def changes(kind=None):
    return [r.changed for r in recompile_report().records if kind in (None, r.kind)]


def test_nothing_yet():
    compiled(lambda x: x + 1)(torch.ones(3))
    assert recompile_report().records == ()
    assert str(neuron_compiler.recompile_report()) == "no recompiles"


def test_a_size():
    def scaled(x):
        return x * 2

    run = compiled(scaled)
    run(torch.ones(2, 3))
    run(torch.ones(4, 3))
    (record,) = recompile_report().records
    assert (record.function, record.kind, record.changed) == ("scaled", "trace", "x.size(0): 2 -> 4")
    assert record.site == f"{__file__}:{scaled.__code__.co_firstlineno}"
    assert "size mismatch at index 0. expected 2, actual 4" in record.guard
    assert record.trace_seconds > 0
    assert record.compile_seconds > 0
    assert "torch._dynamo.mark_dynamic(x, 0)" in record.advice
    assert "scaled" in str(recompile_report())
    assert "1 recompile," in str(recompile_report())


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 3
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, flag=True, n=2, name="a"):
        return self.drop(x) * self.factor * n + flag


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m, x: m(x, flag=False), "flag: True -> False"),
        (lambda m, x: m(x, n=5), "n: 2 -> 5"),
        (lambda m, x: m(x.double()), "x dtype: Float -> Double"),
        (lambda m, x: m(x[0]), "x rank: 2 -> 1"),
        (lambda m, x: m(x.clone().requires_grad_()), "x.requires_grad: False -> True"),
        (lambda m, x: m(x.T.contiguous().T), "x.stride(0): 4 -> 1"),
        (lambda m, x: torch.no_grad()(m)(x), "global state: grad_mode"),
    ],
)
def test_what_changed(change, expected):
    model = Scaled()
    run = torch.compile(model, backend=neuron, dynamic=False)
    x = torch.ones(4, 4)
    run(x)
    change(run, x)
    assert changes() == [expected]


def test_attributes_of_modules():
    model = Scaled()
    run = torch.compile(model, backend=neuron, dynamic=False)
    run(torch.ones(2))
    model.eval()
    run(torch.ones(2))
    model.factor = 4
    run(torch.ones(2))
    first, second = recompile_report().records
    assert first.changed.endswith("training: True -> False")
    assert second.changed == "self.factor: 3 -> 4"
    assert "allow_unspec_int_on_nn_module" in second.advice


def test_a_new_size_of_one_trace():
    run = compiled(lambda x: x * 2, dynamic=True)
    for n in (3, 4, 4, 9):
        run(torch.ones(n))
    assert changes() == ["x.size()[0]: 3 -> 4", "x.size()[0]: 4 -> 9"]
    last = recompile_report().records[-1]
    assert (last.kind, last.guard, last.trace_seconds) == ("size", "", 0.0)
    assert last.compile_seconds > 0
    assert "one program for sizes 9 to 16" in last.advice


def test_a_number_that_changes():
    run = compiled(lambda x, n: x * n, dynamic=True, buckets="powers_of_2")
    for n in (3, 4):
        run(torch.ones(5), n)
    (record,) = recompile_report().records
    assert (record.kind, record.changed) == ("size", "n: 3 -> 4")
    assert record.advice.startswith("n: a number that programs are made for; pass it as a tensor")


def test_forward_and_backward_of_one_size_are_one_recompile():
    weight = torch.ones(3, requires_grad=True)
    run = compiled(lambda x: (x * weight).sin().sum(), dynamic=True)
    for n in (4, 5):
        run(torch.ones(n, 3)).backward()
    assert changes() == ["x.size()[0]: 4 -> 5"]


def test_buckets_absorb_and_say_where_they_cannot():
    run = compiled(lambda x: x * 2, dynamic=True, buckets=[8])
    for n in (3, 4, 7):
        run(torch.ones(n))
    assert changes() == []
    run = compiled(lambda x: x.flip(0), dynamic=True, buckets=[8])
    for n in (3, 4):
        run(torch.ones(n))
    (record,) = recompile_report().records
    assert record.advice.startswith("not padded to a bucket: aten.flip.default reads across the padded dimension 0")
    assert __file__ in record.advice


def test_dropped_programs():
    run = compiled(lambda x: x * 2, dynamic=True, program_cache_size=1)
    for n in (3, 4, 3):
        run(torch.ones(n))
    assert changes("evicted") == ["x.size()[0] = 3", "x.size()[0] = 4"]
    assert changes("size") == ["x.size()[0]: 3 -> 4", "x.size()[0]: 4 -> 3"]


def test_one_warning_per_function():
    def model(x, n):
        return x * n

    run = compiled(model, recompile_warning=2)
    run(torch.ones(2), 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in (2.0, 3.0, 4.0, 5.0):
            run(torch.ones(2), number)
    (warning,) = caught
    text = str(warning.message)
    assert "compiled again 2 times" in text
    assert "n: 1.0 -> 2.0" in text
    assert "make n a tensor" in text
    assert (warning.filename, warning.lineno) == (__file__, model.__code__.co_firstlineno)


def test_a_storm_of_sizes_warns_and_buckets_calm_it():
    run = compiled(lambda x: x * 2, dynamic=True)
    for n in range(3, 8):
        run(torch.ones(n))
    with pytest.warns(RecompileWarning, match="compiled again 5 times"):
        run(torch.ones(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        run = compiled(lambda x: x * 2, dynamic=True, buckets="powers_of_2")
        for n in range(3, 40):
            run(torch.ones(n))


def test_no_warning_where_it_is_off():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        run = compiled(lambda x, n: x * n, recompile_warning=None)
        for number in range(7):
            run(torch.ones(2), float(number))


def test_the_dump_has_the_report(tmp_path):
    run = compiled(lambda x: x * 2, dump=str(tmp_path))
    run(torch.ones(2))
    run(torch.ones(3))
    first, second = sorted(tmp_path.iterdir())
    assert not (first / "recompiles.txt").exists()
    assert "x.size(0): 2 -> 3" in (second / "recompiles.txt").read_text()


def test_another_release_of_pytorch_is_not_read(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.0.0")
    assert frame.current() is None
    run = compiled(lambda x: x * 2)
    run(torch.ones(2))
    assert run(torch.ones(3)).tolist() == [2.0] * 3
    assert recompile_report().records == ()


@pytest.mark.parametrize(
    ("guard", "values", "expected"),
    [
        ("n == 3", {"n": 4}, "n: 3 -> 4"),
        ("3 == n", {"n": 4}, "n: 3 -> 4"),
        ("x.size()[0] == 3", {"x": torch.ones(2)}, "x.size()[0]: 3 -> 2"),
        ("2 <= x.size()[0]", {"x": torch.ones(1)}, "x.size()[0]: 1, was 2 <= x.size()[0]"),
        ("len(parts) == 2", {"parts": [1]}, "len(parts): 2 -> 1"),
        ("d['a'] == 1", {"d": {"a": 5}}, "d['a']: 1 -> 5"),
        ("x.size()[1] == x.size()[0]", {"x": torch.ones(2, 3)}, "x.size()[1]: 3, was x.size()[1] == x.size()[0]"),
        ("gone == 1", {}, "no longer gone == 1"),
        ("open('f') == 1", {}, "no longer open('f') == 1"),
        ("not a guard at all", {}, "not a guard at all"),
        ("___check_type_id(x, 7)", {}, "___check_type_id(x, 7)"),
    ],
)
def test_words_for_guards(guard, values, expected):
    assert frame.change(frame.Frame("f", "f.py:1", guard, 0.0, values))[0] == expected
