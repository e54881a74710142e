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

import pytest
import torch
from model_check import assert_whole, distance, eager, run

from neuron_compiler.measure.difference import HALF_FACTOR, RMS_LIMIT, difference
from neuron_compiler.models import CATALOGUE, Entry, Size

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
    found = distance(example, eager(example))
    record_property("largest_error", found.largest)
    record_property("rms_error", found.rms)
    assert found.fault == ""
    assert found.rms <= RMS_LIMIT, found


@each_size
@each_model
def test_bfloat16(entry: Entry, size: Size, record_property: Record) -> None:
    """No further from float32, with the same weights, than 1.1 times eager's bfloat16."""
    example = entry.builder(size).to(torch.bfloat16)
    reference = eager(example.to(torch.float32))
    results = eager(example)
    made = run(example)
    assert_whole(made)
    assert [r.dtype for r in made.results] == [r.dtype for r in results]
    own = difference(made.results, reference, dtypes=False)
    theirs = difference(results, reference, dtypes=False)
    record_property("rms_error", own.rms)
    record_property("eager_rms_error", theirs.rms)
    assert own.fault == ""
    assert own.rms <= HALF_FACTOR * theirs.rms, (own, theirs)


def test_the_same_call_gives_the_same_bits() -> None:
    """A compiled model is a function: no result depends on how work was shared between threads."""
    example = next(e for e in CATALOGUE if e.name == "gpt2").builder(Size.SMALL)
    first = run(example).results
    again = run(example).results
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
