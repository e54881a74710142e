"""Well-known models, compiled as one graph without a fallback, against eager.

Each model is built narrow and shallow (``small``), and with its published width under the marker ``full``. Weights are
random, and scaled so that masks, positions, statistics and every norm matter (``neuron_compiler.models.example``);
``test_faults.py`` shows that faults of those are seen. What a model needs to be one graph:

* language models are called with ``use_cache=False``: a cache is an object that grows from call to call;
* Mixtral's default loop over the experts that were hit has sizes that depend on data (``nonzero``), which breaks the
  graph under every backend: ``experts_implementation="batched_mm"`` gathers each token's expert weights instead;
* Mamba, when compiled, scans by ``torch._higher_order_ops.associative_scan``, which unrolls into a logarithmic number
  of steps; eagerly it loops over the tokens. That is the library's own choice (``use_associative_scan``).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import geometric_mean

import pytest
import torch
from model_check import assert_whole, call, compiled, rms

from neuron_compiler.ledger import LEDGER
from neuron_compiler.measure.difference import RMS_LIMIT, difference
from neuron_compiler.models import CATALOGUE, Entry, Size

INPUTS = {Size.SMALL: 8, Size.FULL: 4}
"""Over how many inputs errors in bfloat16 are taken."""

ROUTED = ("mixtral",)
"""Models that jump: a rounding may send a token to another expert, in eager as likely as here, and the error of that
input is then ten times the others'. Two in five inputs of Mixtral jump, so that an RMS of a few tells of luck only:
theirs are compared by the geometric mean of `ROUTED_INPUTS` errors, to which each jump counts and none drowns the
others."""

ROUTED_INPUTS = 61

SIZES = [pytest.param(Size.SMALL, id="small"), pytest.param(Size.FULL, id="full", marks=pytest.mark.full)]

Record = Callable[[str, object], None]

each_model = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
each_size = pytest.mark.parametrize("size", SIZES)


def test_the_list() -> None:
    names = {entry.name for entry in CATALOGUE}
    assert names >= {
        "gpt2",
        "llama",
        "qwen3",
        "bert",
        "t5",
        "whisper",
        "vit",
        "resnet50",
        "convnext",
        "mamba",
        "mixtral",
    }


@each_size
@each_model
def test_float32(entry: Entry, size: Size, record_property: Record) -> None:
    """One executable, no fallback, and a relative RMS error of at most 1e-4."""
    example = entry.builder(size)
    found = difference(call(example, compiled(example.module)), call(example))
    assert_whole()
    record_property("largest_error", found.largest)
    record_property("rms_error", found.rms)
    assert found.fault == ""
    assert found.rms <= RMS_LIMIT, found


@each_size
@each_model
def test_bfloat16(entry: Entry, size: Size, record_property: Record) -> None:
    """No further from float32, with the same weights, than 1.1 times eager's bfloat16.

    Over several inputs: for one, roundings make either luckier by more than that.
    """
    example = entry.builder(size).to(torch.bfloat16)
    wide = example.to(torch.float32).module
    module = compiled(example.module)
    own, theirs = [], []
    for seed in range(ROUTED_INPUTS if entry.name in ROUTED else INPUTS[size]):
        narrow = example.with_inputs(seed)
        reference = call(narrow.inputs_to(torch.float32), wide)
        results, found = call(narrow), call(narrow, module)
        assert [r.dtype for r in found] == [r.dtype for r in results]
        own.append(difference(found, reference, dtypes=False).rms)
        theirs.append(difference(results, reference, dtypes=False).rms)
    assert_whole()
    average = geometric_mean if entry.name in ROUTED else rms
    ratio = average(own) / average(theirs)
    record_property("error_by_eagers", ratio)
    assert ratio <= 1.1, (own, theirs)


def test_the_same_call_gives_the_same_bits() -> None:
    """A compiled model is a function: no result depends on how work was shared between threads."""
    example = next(e for e in CATALOGUE if e.name == "gpt2").builder(Size.SMALL)
    first = call(example, compiled(example.module))
    torch._dynamo.reset()
    again = call(example, compiled(example.module))
    assert LEDGER.total("compile") == 2
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
