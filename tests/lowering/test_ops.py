"""Every rule against ATen: one test an overload, made from the registry and PyTorch's op database."""

from __future__ import annotations

import jax.numpy as jnp
import op_check
import op_samples
import pytest
import torch

import neuron_compiler.lowering.ops  # noqa: F401  (fills the registry)
from neuron_compiler.opdef import REGISTRY, Kind, Registry, op

ELSEWHERE = ("transformers.", "higher_order.")
"""What is tested in files of its own: its arguments are no samples of the database."""


@pytest.mark.parametrize("overload", [name for name in REGISTRY.names() if not name.startswith(ELSEWHERE)])
def test_rule_gives_what_aten_gives(overload: str) -> None:
    calls = op_samples.samples(overload, op_samples.FAST, op_samples.COUNT)
    assert calls, f"no sample reaches {overload}: add one to hand_samples.py"
    supported = [call for call in calls if op_check.why_skipped(call) is None]
    assert supported, f"the rule supports none of: {', '.join(map(str, calls))}"
    op_check.check(supported)


def _registry(rule: object) -> Registry:
    registry = Registry()
    op(torch.ops.aten.exp.default, kind=Kind.ELEMENTWISE, registry=registry)(rule)
    return registry


def test_harness_accepts_a_right_rule_and_refuses_wrong_ones() -> None:
    x = torch.tensor([0.5, float("nan"), float("inf")])
    call = op_samples.made("aten.exp.default", (x,), {})
    op_check.check([call], _registry(lambda x: jnp.exp(x)))
    with pytest.raises(AssertionError, match="not close"):
        op_check.check([call], _registry(lambda x: jnp.exp(x) * 1.0001))
    with pytest.raises(AssertionError, match="not close"):
        op_check.check([call], _registry(lambda x: jnp.where(jnp.isnan(x), 0.0, jnp.exp(x)).astype(x.dtype)))
    with pytest.raises(Exception, match="PyTorch recorded"):
        op_check.check([call], _registry(lambda x: jnp.exp(x).astype(jnp.float16)))
    with pytest.raises(Exception, match="PyTorch recorded"):
        op_check.check([call], _registry(lambda x: jnp.exp(x)[None]))
