"""Effects that compile: checks become ordinary ops, those of ``torch.linalg`` on AOTAutograd's tokens.

``with_effects(token, aten._linalg_check_errors, info, name, is_matrix=...)`` returns the next token and nothing else.
``aten._assert_async`` returns nothing and nobody reads it: what stands for it is in ``KEPT``.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from neuron_compiler.lowering.ops.assertion import ASSERTION
from neuron_compiler.lowering.ops.linalg_check import LINALG_CHECK

WITH_EFFECTS = "with_effects"

ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)

KEPT = frozenset({ASSERTION})
"""Ops that run though nobody reads their result."""


def _is_check(node: Node) -> bool:
    return (
        isinstance(node.target, HigherOrderOperator)
        and node.target.name() == WITH_EFFECTS
        and node.args[1] is torch.ops.aten._linalg_check_errors.default
        and all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    )


def compile_checks(module: GraphModule) -> None:
    """Rewrite the checks of one captured graph in place."""
    for node in list(module.graph.nodes):
        if node.target in ASSERTIONS:
            _compile_assertion(node)
        if not _is_check(node):
            continue
        token, _, *rest = node.args
        before = token if token.target is LINALG_CHECK else None  # a graph's first token is None when it is called
        with module.graph.inserting_before(node):
            checked = module.graph.call_function(LINALG_CHECK, (before, *rest), node.kwargs)
        checked.meta = {**node.meta, "val": node.meta["val"][0]}
        for user in list(node.users):
            user.replace_all_uses_with(checked)
            module.graph.erase_node(user)
        module.graph.erase_node(node)
    module.recompile()


def _compile_assertion(node: Node) -> None:
    condition = node.args[0]
    if not (isinstance(condition, Node) and isinstance(value := condition.meta.get("val"), torch.Tensor)):
        return
    with node.graph.inserting_before(node):
        asserted = node.graph.call_function(ASSERTION, node.args)
    asserted.meta = {**node.meta, "val": value.new_empty(0)}
    node.graph.erase_node(node)
