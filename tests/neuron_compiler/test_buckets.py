"""Buckets from end to end: which sizes share a program, what is left exact and why, and that nobody can tell."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from neuron_compiler import LEDGER, neuron
from neuron_compiler.buckets.sizes import bucket_of

SIZES = (5, 7, 8, 6, 3, 9)
SHARED = 3  # buckets 8, 4 and 16


def compiled(model, dynamic=True, **options):
    torch._dynamo.reset()
    return torch.compile(model, backend=neuron, dynamic=dynamic, options={"buckets": "powers_of_2", **options})


def marked(make, n, at):
    """Arguments of which only dimension ``at`` changes."""
    arguments = [one(n) for one in make]
    for argument in arguments:
        torch._dynamo.mark_dynamic(argument, at)
    return arguments


def assert_shared(model, *make, programs=SHARED, sizes=SIZES, at=0):
    """``model`` of arguments made for each size is as eager, and is compiled ``programs`` times."""
    LEDGER.clear()
    counters.clear()
    run = compiled(model, dynamic=None)
    for n in sizes:
        arguments = marked(make, n, at)
        found, expected = run(*arguments), model(*arguments)
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
        for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True):
            assert one.stride() == other.stride()
    assert counters["stats"]["unique_graphs"] == 1
    assert LEDGER.counts("unbucketed") == {}
    assert LEDGER.total("compile") == programs


def assert_exact(model, *make, cause, sizes=(5, 6, 7)):
    """The same, but each size has its own program, for this cause."""
    run = compiled(model, dynamic=None)
    for n in sizes:
        arguments = marked(make, n, 0)
        torch.testing.assert_close(run(*arguments), model(*arguments), equal_nan=True, rtol=1e-5, atol=1e-5)
    assert LEDGER.total("compile") == len(sizes)
    assert {entry.cause for entry in LEDGER.counts("unbucketed")} == {cause}
    assert all(entry.site.startswith(__file__) for entry in LEDGER.counts("unbucketed"))


def rows(*rest, low=None):
    """Makes a tensor whose first size changes."""
    return lambda n: torch.randn(n, *rest) if low is None else torch.randint(low, 9, (n, *rest))


@pytest.mark.parametrize(
    ("buckets", "size", "expected"),
    [
        (None, 5, None),
        ("powers_of_2", 5, 8),
        ("powers_of_2", 8, 8),
        ("powers_of_2", 2, 2),
        ("powers_of_2", 1, None),
        ("multiples_of_6", 13, 18),
        ("multiples_of_6", 12, 12),
        ((4, 32), 5, 32),
        ((4, 32), 33, None),
        ((4, 32), 0, None),
    ],
)
def test_bucket_of(buckets, size, expected):
    assert bucket_of(size, buckets) == expected


# --- what shares programs -----------------------------------------------------------------------------------------

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

MODELS = {
    "a perceptron": lambda x: F.layer_norm(F.gelu(x @ W), (4,)),
    "softmax over rows and over the batch": lambda x: (x.softmax(1), x.softmax(0)),
    "sums and means over the batch": lambda x: (x.sum(0), x.mean(0), x.mean(), x.amax(0), (x > 0).all(0)),
    "a size as a number": lambda x: x * x.shape[0] + x / x.shape[0],
    "products over the batch": lambda x: (x.T @ x, x @ x.T),
    "positions": lambda x: x + torch.arange(x.shape[0])[:, None],
    "merged rows": lambda x: (x.reshape(-1, 2) * 2).reshape(x.shape),
    "parts": lambda x: (x[1:] * 2, x[:, 1:] * 2, x[::2] * 2, x[-1] * 2, x[2] * 2),
    "joined at the end": lambda x: torch.cat([torch.zeros(1, 4), x]),
    "transposed results": lambda x: (x.T.contiguous(), x.T * 2),
    "running sums": lambda x: x.cumsum(0),
    "a gather by padded indices": lambda x: F.embedding(x.argmax(1), W),
    "largest": lambda x: (x.argmax(0), x.max(0)),
    "a cross entropy": lambda x: F.cross_entropy(x, x.argmax(1)),
    "causal attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_share_a_program(name):
    assert_shared(MODELS[name], rows(4))


POSITIONS = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))


def attended(x, **how):
    """Attention whose padding repeats nothing: each position has its own vector, infinite beyond 9."""
    y = x + POSITIONS[: x.shape[1]] / (torch.arange(x.shape[1]) < 10)[:, None]
    return F.scaled_dot_product_attention(y[:, None], y[:, None] * 2, y[:, None] - 1, **how)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_over_a_padded_sequence(causal):
    def model(x):
        return attended(x, is_causal=causal)

    assert_shared(model, lambda n: torch.randn(2, n, 4), at=1)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_through_attention_over_a_padded_sequence(causal):
    run = compiled(lambda x: attended(x, is_causal=causal).pow(2).mean(), dynamic=None)
    for n in (5, 7, 8):
        x = torch.randn(2, n, 4, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 1)
        (found,) = torch.autograd.grad(run(x), [x])
        (expected,) = torch.autograd.grad(attended(x, is_causal=causal).pow(2).mean(), [x])
        torch.testing.assert_close(found, expected)
    assert LEDGER.counts("unbucketed") == {}
    assert LEDGER.total("compile") == 2


def test_attention_with_a_mask_over_a_padded_sequence():
    def model(x):
        below = torch.arange(x.shape[1])[:, None] >= torch.arange(x.shape[1])
        return attended(x, attn_mask=torch.where(below, 0.0, float("-inf")))

    assert_shared(model, lambda n: torch.randn(2, n, 4), at=1)


def test_images_share_programs():
    def model(x):
        return F.max_pool2d(F.conv2d(x.view(-1, 1, 2, 2), W[None, None, :2, :2], padding=1), 2)

    assert_shared(model, rows(4), sizes=(5, 7, 8, 3), programs=2)  # from 16 on, PyTorch traces a convolution anew


def test_two_sizes_share_programs():
    run = compiled(lambda x, y: torch.softmax(x @ y.T, -1) @ y)
    for n, m in ((5, 9), (6, 10), (7, 16), (8, 11), (8, 16)):
        x, y = torch.randn(n, 4), torch.randn(m, 4)
        torch.testing.assert_close(run(x, y), torch.softmax(x @ y.T, -1) @ y)
    assert LEDGER.total("compile") <= 2
    assert LEDGER.counts("unbucketed") == {}


def test_a_sequence_merged_with_the_batch():
    layer = torch.nn.Linear(4, 3).requires_grad_(False)
    assert_shared(lambda x: layer(x).relu(), lambda n: torch.randn(2, n, 4), at=1)


def test_gradients_of_weights_do_not_see_padding():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    run = compiled(lambda x, y: F.cross_entropy(model(x), y))
    for n in SIZES:
        x, y = torch.randn(n, 4, requires_grad=True), torch.randint(0, 3, (n,))
        found = torch.autograd.grad(run(x, y), [x, *model.parameters()])
        expected = torch.autograd.grad(F.cross_entropy(model(x), y), [x, *model.parameters()])
        torch.testing.assert_close(found, expected)
    assert LEDGER.total("compile") == 2 * SHARED
    assert LEDGER.counts("unbucketed") == {}


def test_gradients_of_filters_do_not_see_padding():
    filters = torch.nn.Conv2d(2, 3, 3, padding=1)
    run = compiled(lambda x: filters(x).relu().mean(), dynamic=None)
    for n in (5, 6, 8):
        (x,) = marked([rows(2, 4, 4)], n, 0)
        found = torch.autograd.grad(run(x), list(filters.parameters()))
        torch.testing.assert_close(found, torch.autograd.grad(filters(x).relu().mean(), list(filters.parameters())))
    assert LEDGER.total("compile") == 2


# --- what does not ------------------------------------------------------------------------------------------------

EXACT = {
    "takes a size as a number": lambda x: x.pow(x.shape[0]),
    "counts from the end of the padded dimension 0 of %arg1_1": lambda x: x[-2] * 2,
    "joins other elements behind the padding of %arg1_1": lambda x: torch.cat([x, torch.zeros(1, 4)]),
    "reads across the padded dimension 0 of %arg1_1": lambda x: x.flip(0),
    "has no rule that says where padding goes": lambda x: torch.linalg.svdvals(x),
}


@pytest.mark.parametrize("cause", EXACT)
def test_what_might_see_padding_is_compiled_exactly(cause):
    assert_exact(EXACT[cause], rows(4), cause=cause)


def test_statistics_of_the_batch_are_exact():
    assert_exact(
        lambda x: F.batch_norm(x, None, None, training=True),
        rows(4),
        cause="has no rule that says where padding goes",
    )


def test_a_size_above_the_largest_bucket_is_exact():
    run = compiled(lambda x: x * 2, buckets=[4, 8])
    for n in (3, 4, 9, 7, 10):
        assert run(torch.ones(n)).tolist() == [2.0] * n
    assert LEDGER.total("compile") == 4
    assert {e.cause for e in LEDGER.counts("unbucketed")} == {"no bucket holds 9", "no bucket holds 10"}


def test_what_tracing_assumed_holds_of_the_bucket_too():
    torch._dynamo.reset()

    def model(x):
        return x * 2 if x.shape[0] < 7 else x * 3

    run = compiled(model)
    for n in (5, 6, 8, 12):
        assert run(torch.ones(n)).tolist() == model(torch.ones(n)).tolist()
    assert any("assumes" in e.cause for e in LEDGER.counts("unbucketed"))


def test_one_size_is_padded_where_the_other_cannot_be():
    run = compiled(lambda x: x.flip(0) * 2)
    for n, m in ((5, 9), (5, 10), (5, 16), (6, 10)):
        x = torch.randn(n, m)
        torch.testing.assert_close(run(x), x.flip(0) * 2)
    assert LEDGER.total("compile") == 2
    assert len(LEDGER.counts("unbucketed")) == 1


# --- what padding must not do -------------------------------------------------------------------------------------


def test_padding_raises_nothing():
    table = torch.arange(6.0)
    assert_shared(lambda x: (100 // x, table[x % 6], 7 % x), rows(low=1))
    # Positions run over the end of the table in the padding only.
    assert_shared(
        lambda x: x + F.embedding(torch.arange(x.shape[0]), torch.arange(7.0)[:, None]),
        rows(2),
        sizes=(5, 6, 7),
        programs=1,
    )


def test_true_elements_raise_as_they_do():
    run = compiled(lambda x: 100 // x)
    run(torch.tensor([1, 2, 3, 4, 5]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(torch.tensor([1, 2, 0, 4, 5, 6]))
    run = compiled(lambda x: torch.arange(6.0)[x])
    run(torch.tensor([1, 2, 3]))
    with pytest.raises(IndexError):
        run(torch.tensor([1, 2, 3, 6]))
    with pytest.raises(IndexError):
        run(torch.tensor([1, 6, 3]))


def test_infinities_and_nans_stay_in_their_rows():
    for special in (float("inf"), float("nan")):

        def row(n, special=special):
            x = torch.randn(n, 4)
            x[-1, 0] = special
            return x

        for name in (
            "products over the batch",
            "sums and means over the batch",
            "softmax over rows and over the batch",
        ):
            assert_shared(MODELS[name], row)


def test_arguments_changed_in_place():
    def model(x, y):
        x.add_(1)
        y[1:].mul_(x[1:])
        return x.sum(0), y

    run = compiled(model)
    for n in (5, 6, 7):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        a, b = x.clone(), y.clone()
        total, same = run(x, y)
        expected, _ = model(a, b)
        torch.testing.assert_close((total, x, y), (expected, a, b))
        assert same is y
    assert LEDGER.total("compile") == 1


def test_results_own_no_more_memory_than_they_show():
    run = compiled(lambda x: (x * 2, x.T + 1, x[0] + x))
    for result in run(torch.randn(5, 4)):
        assert result.untyped_storage().nbytes() == result.numel() * 4
    assert run(torch.randn(6, 4).T.contiguous().T)[0].shape == (6, 4)


def test_views_of_results_share_their_memory():
    run = compiled(lambda x: (y := x * 2, y[1:]))
    for n in (5, 6):
        whole, part = run(torch.ones(n, 4))
        part.zero_()
        assert whole.sum() == 8


def test_arguments_in_any_layout():
    assert_shared(lambda x: x * 2 + 1, lambda n: torch.randn(4, n, 3).transpose(0, 1))
    assert_shared(lambda x: x * 2 + 1, lambda n: torch.randn(1, 4).expand(n, 4))
    assert_shared(lambda x: x * 2 + 1, lambda n: torch.randn(3 * n, 8)[::3, 1:5])


def test_random_draws_have_the_true_size():
    run = compiled(lambda x: F.dropout(x, 0.5) + torch.rand(x.shape[0], 1))
    for n in (5, 6, 7):
        x = torch.randn(n, 4)
        torch.manual_seed(n)
        found, after = run(x), torch.rand(1)
        torch.manual_seed(n)
        torch.testing.assert_close((found, after), (F.dropout(x, 0.5) + torch.rand(n, 1), torch.rand(1)))
    assert LEDGER.total("compile") == 1


def test_numbers_that_are_returned_are_true():
    run = compiled(lambda x: (x * 2, x.shape[0] + 1))
    assert [run(torch.ones(n))[1] for n in (5, 6, 8)] == [6, 7, 9]
    assert LEDGER.total("compile") == 1


def test_sizes_0_and_1():
    run = compiled(lambda x: (x * 2, x.sum(0)))
    for n in (5, 1, 0, 6, 1, 0):
        x = torch.ones(n, 3)
        torch.testing.assert_close(run(x), (x * 2, x.sum(0)))


def test_a_bucket_that_is_met_exactly_first_serves_smaller_sizes():
    assert_shared(MODELS["sums and means over the batch"], rows(4), sizes=(8, 5, 8, 7), programs=1)


def test_threads_share_programs():
    run = compiled(lambda x: torch.tanh(x @ W).softmax(0))
    run(torch.randn(5, 4))
    errors = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for n in (3, 6, 7, 9):
            x = torch.randn(n, 4, generator=generator)
            if not torch.allclose(run(x), torch.tanh(x @ W).softmax(0), atol=1e-6):
                errors.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert LEDGER.total("compile") == SHARED


def test_the_dump_says_what_was_padded(tmp_path):
    run = compiled(lambda x: x.flip(0) * 2, dump=str(tmp_path))
    run(torch.randn(5, 9))
    run(torch.randn(5, 10))
    (folder,) = tmp_path.iterdir()
    text = (folder / "buckets.txt").read_text()
    assert "x.size()[1]      9      16" in text
    assert f"aten.flip.default  reads across the padded dimension 0 of %arg2_1  {__file__}" in text
