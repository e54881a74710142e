"""What a captured graph means for the user: values, strides, aliasing, mutation, randomness, fallbacks, sizes."""

import threading

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from neuron_compiler.capture import neuron
from neuron_compiler.errors import NeuronCompilerError
from neuron_compiler.ledger import LEDGER


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend=neuron, fullgraph=True, **options)


def check(function, *inputs, fallbacks=0, **options):
    """Compare compiled with eager: values, dtypes, strides, and what happened to the inputs."""
    eager_inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    expected = function(*eager_inputs)
    before = LEDGER.total("fallback")
    result = compiled(function, **options)(*inputs)
    assert LEDGER.total("fallback") - before == fallbacks, LEDGER.counts("fallback")
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6, equal_nan=True, check_stride=True)
    torch.testing.assert_close(list(inputs), eager_inputs)
    return result


# --- results ------------------------------------------------------------------------------------------------------


def test_outputs_keep_eagers_strides():
    x = torch.randn(2, 3, 4, 5)
    check(lambda x: ((x + 1).permute(0, 2, 3, 1), (x * 2).transpose(-1, -2)), x)
    check(lambda x: x + 1, x.to(memory_format=torch.channels_last))


def test_an_expanded_result_comes_back_expanded():
    check(lambda x: (x + 1).expand(4, 3), torch.randn(1, 3))


def test_a_view_of_an_input_shares_its_memory():
    x = torch.randn(4, 6)
    with torch.no_grad():
        view = compiled(lambda x: x.t())(x)
    view[0, 0] = 7.0
    assert x[0, 0] == 7.0


def test_outputs_that_alias_each_other_still_do():
    def f(x):
        y = x * 2
        return y, y.view(-1)

    y, flat = check(f, torch.randn(2, 3))
    flat[0] = 5.0
    assert y[0, 0] == 5.0


def test_views_of_one_intermediate_share_its_memory():
    def f(x):
        y = x * 2
        a, b = y.split([1, 2], dim=1)
        return y, a, b.t(), y[1:], y.unbind(0)[0]

    y, a, b, rest, first = check(f, torch.randn(2, 3))
    y.fill_(5.0)
    for view in (a, b, rest, first):
        assert view.unique().tolist() == [5.0]


def test_none_and_numbers_pass_through():
    check(lambda x, y, n: (x + n, None, n), torch.randn(3), None, 4)
    check(lambda x: [x.shape[0], x + 1, {"a": x * 2.5}], torch.randn(3))


def test_an_input_returned_as_it_is():
    x = torch.randn(3)
    assert compiled(lambda x, y: (x, y + 1))(x, torch.ones(2))[0] is x


def test_a_captured_constant():
    table = torch.randn(500)
    small = torch.tensor([1.0, 2.0, 3.0])
    check(lambda x: (x + small, x[0] * table), torch.randn(3))
    check(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), torch.randn(3))


def test_zero_sized_and_zero_dimensional_tensors():
    check(lambda x, y: (x + y, x.sum()), torch.zeros(0, 4), torch.tensor(2.0))


def test_inputs_that_are_not_contiguous():
    base = torch.randn(6, 8)
    check(lambda x: x * 2 + 1, base[::2, 1::3])
    check(lambda x: x * 2 + 1, torch.randn(3, 1).expand(3, 4))
    check(lambda x: x * 2 + 1, base.t())


def test_as_strided_of_a_view_looks_at_the_storage():
    check(lambda x: (x + 1)[1:].as_strided((2, 2), (1, 2)), torch.arange(10.0))
    check(lambda x: (x + 1).t().as_strided((2, 3), (3, 1), 1), torch.arange(12.0).reshape(3, 4))


def test_int64_and_float64_are_computed_as_such():
    check(lambda i: i * 2**33 + 1, torch.tensor([3, -5]))
    check(lambda x: x * 1.0000000001, torch.tensor([1.0], dtype=torch.float64))


def test_arguments_are_named_as_the_user_knows_them():
    from neuron_compiler.compile import recording

    layer = torch.nn.Sequential(torch.nn.Linear(3, 2))
    with recording() as found, torch.no_grad():
        compiled(layer)(torch.ones(1, 3))
    names = [value.origin for value in found[0].captured.graph.inputs]
    assert [name.split(".", 1)[1] for name in names[:2]] == ["0.weight", "0.bias"]
    assert names[2] == "args[0]"


# --- mutation -----------------------------------------------------------------------------------------------------


def test_inputs_and_buffers_change_in_place():
    def f(b, x):
        b.add_(x)
        b[0] = 9.0
        return b * 2

    check(f, torch.zeros(3), torch.ones(3))

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n += 1
            return x * self.n

    module = Counter()
    step = compiled(module)
    with torch.no_grad():
        assert [step(torch.ones(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert module.n.item() == 3.0


def test_an_input_changed_through_a_view():
    def f(x):
        x.t()[0].mul_(3.0)
        return x + 0

    check(f, torch.ones(2, 3))


def test_two_inputs_that_swap_their_values():
    def f(x, y):
        t = x.clone()
        x.copy_(y)
        y.copy_(t)
        return x + y

    check(f, torch.ones(3), torch.zeros(3))


def test_the_version_counter_tells_of_a_change():
    x = torch.ones(3)
    version = x._version
    with torch.no_grad():
        compiled(lambda x: x.add_(1))(x)
    assert x._version > version


# --- gradients ----------------------------------------------------------------------------------------------------


def test_forward_and_backward():
    x = torch.randn(4, 5, requires_grad=True)
    w = torch.randn(5, 3, requires_grad=True)

    def f(x, w):
        return torch.tanh(x @ w).sum()

    f(x, w).backward()
    expected = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    compiled(f)(x, w).backward()
    torch.testing.assert_close((x.grad, w.grad), expected)
    assert LEDGER.total("fallback") == 0


def test_no_grad_and_inference_mode():
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    run = compiled(layer)
    expected = layer(x).detach()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(run(x), expected)
    assert run(x).requires_grad


# --- random numbers -----------------------------------------------------------------------------------------------


def test_random_draws_equal_eagers_bit_for_bit():
    def f(x):
        a = torch.nn.functional.dropout(x, 0.3)
        b = torch.rand(3, 4)
        c = torch.bernoulli(torch.sigmoid(x))
        return a + b, c, torch.randn_like(x), torch.randint(0, 9, (5,)), torch.randperm(6)

    x = torch.randn(3, 4)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    result = compiled(f)(x)
    for r, e in zip(result, expected, strict=True):
        torch.testing.assert_close(r, e, rtol=1e-6, atol=0)
    after = torch.rand(1)
    torch.manual_seed(3)
    f(x)
    assert torch.equal(after, torch.rand(1))
    assert LEDGER.total("fallback") == 0
    assert LEDGER.total("random") == 6


def test_dropout_needs_one_executable_and_is_the_same_in_backward():
    x = torch.randn(50, requires_grad=True)
    run = compiled(lambda x: torch.nn.functional.dropout(x * 2, 0.5) * 3)
    y = run(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    assert LEDGER.total("compile") == 2


def test_a_checkpointed_dropout_draws_the_same_again():
    layer = torch.nn.Linear(8, 8)

    def f(x):
        return checkpoint(lambda y: torch.nn.functional.dropout(torch.relu(layer(y)), 0.5), x, use_reentrant=False)

    x = torch.randn(4, 8, requires_grad=True)
    torch.manual_seed(0)
    f(x).sum().backward()
    expected, x.grad = x.grad, None
    torch.manual_seed(0)
    compiled(f)(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert LEDGER.total("fallback") == 0
    assert LEDGER.total("random") == 2


@pytest.mark.parametrize("gradients", [False, True])
def test_draws_go_in_the_order_that_eager_fills_in(gradients):
    """By memory for what fills in place, dropout included; by element for ``torch.bernoulli``."""

    def run(x):
        y = x.transpose(0, 2)
        dropped = torch.nn.functional.dropout(y, 0.3)
        filled = y.detach().clone().bernoulli_(0.4)
        return dropped, filled, torch.bernoulli(y.detach(), 0.4), torch.rand_like(y), y.detach().clone().uniform_()

    x = torch.randn(3, 4, 5, requires_grad=gradients)
    torch.manual_seed(3)
    want = run(x)
    torch.manual_seed(3)
    for a, b in zip(compiled(run)(x), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)


def test_a_checkpointed_draw_goes_in_the_order_that_eager_fills_in():
    def run(x):
        return checkpoint(lambda y: torch.nn.functional.dropout(y.t().relu(), 0.5) * y.t(), x, use_reentrant=False)

    x, y = (torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_() for _ in range(2))
    torch.manual_seed(3)
    want = run(x)
    want.sum().backward()
    torch.manual_seed(3)
    got = compiled(run)(y)
    got.sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(y.grad, x.grad)


def test_random_numbers_are_not_baked_in():
    run = compiled(lambda x: x + torch.rand(4))
    assert not torch.equal(run(torch.zeros(4)), run(torch.zeros(4)))


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_every_setting_of_dynamic(dynamic):
    torch._dynamo.reset()
    run = torch.compile(lambda x, y: (x + y).view(-1, 2) * x.shape[0], backend=neuron, dynamic=dynamic)
    for n in (2, 4, 6, 4):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        torch.testing.assert_close(run(x, y), (x + y).view(-1, 2) * n)
    assert LEDGER.total("fallback") == 0


def test_a_new_size_needs_no_new_trace():
    run = compiled(lambda x: x * 2, dynamic=True)
    run(torch.randn(3))
    traced = counters["stats"]["unique_graphs"]
    for n in (4, 5, 6):
        run(torch.randn(n))
    assert counters["stats"]["unique_graphs"] == traced
    assert LEDGER.total("compile") == 4


def test_the_cache_of_sizes_is_bounded():
    run = compiled(lambda x: x * 2, dynamic=True, options={"program_cache_size": 2})
    for n in (2, 3, 4, 4, 3, 2):
        assert run(torch.ones(n)).tolist() == [2.0] * n
    assert LEDGER.total("compile") == 4
    assert LEDGER.total("evicted") == 2


# --- fallbacks ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("neuron_compiler_test::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_op_without_a_rule_is_an_island_and_counted_per_call():
    run = compiled(lambda x: torch.relu(double(x + 1)) - 1)
    for _ in range(3):
        assert run(torch.tensor([1.0, -3.0])).tolist() == [3.0, -1.0]
    ((entry, count),) = LEDGER.counts("fallback").items()
    assert (entry.op, entry.cause, count) == ("neuron_compiler_test.double.default", "no lowering rule", 3)
    assert "test_capture.py:" in entry.site
    assert {k: v for k, v in counters["neuron"].items() if "fallback" in k} == {
        "fallback: neuron_compiler_test.double.default: no lowering rule": 3
    }


def test_checks_of_factorisations_compile_and_raise():
    x = torch.eye(3) * 2 + 0.1

    def f(x):
        return torch.linalg.inv(x) @ torch.linalg.cholesky(x)

    check(f, x)
    check(f, x.clone().requires_grad_())
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.inv"):
        compiled(f)(torch.zeros(3, 3))
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.cholesky"):
        compiled(f)(-x)


def test_strict_refuses_what_would_run_eagerly():
    with pytest.raises(Exception, match=r"double.default cannot be compiled: no lowering rule"):
        compiled(lambda x: double(x), options={"strict": True})(torch.ones(2))


def test_options_are_checked():
    with pytest.raises(Exception, match=r"unknown option .speed.(.|\n)*known: target, dump"):
        compiled(lambda x: x + 1, options={"speed": 11})(torch.ones(2))
    with pytest.raises(Exception, match="option 'mode' is 'warp'"):
        neuron(None, [], mode="warp")
    assert issubclass(NeuronCompilerError, Exception)


def test_a_rule_that_raises_is_an_error_and_not_a_fallback(monkeypatch):
    from neuron_compiler import opdef

    name = "aten.relu.default"
    record = opdef.REGISTRY[name]

    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("planted")

    from dataclasses import replace

    monkeypatch.setitem(opdef.REGISTRY._records, name, replace(record, lower=broken, wants_out=False))
    with pytest.raises(Exception, match=r"the rule of aten.relu.default raised ZeroDivisionError: planted"):
        compiled(torch.relu)(torch.ones(2))
    assert LEDGER.total("fallback") == 0


# --- threads ------------------------------------------------------------------------------------------------------


def test_threads_may_call_one_function_at_once():
    run = compiled(lambda x, b: torch.tanh(x @ x.t() + b), dynamic=True)
    run(torch.randn(4, 4), 1.0)
    errors = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for n in (3, 4, 5, 6):
            x = torch.randn(n, n, generator=generator)
            if not torch.allclose(run(x, 1.0), torch.tanh(x @ x.t() + 1.0), atol=1e-6):
                errors.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
