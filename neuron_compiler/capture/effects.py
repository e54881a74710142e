"""Effects that compile: the checks of ``torch.linalg`` become ordinary ops on AOTAutograd's tokens.

``with_effects(token, aten._linalg_check_errors, info, name, is_matrix=...)`` returns the next token and nothing else.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from neuron_compiler.lowering.ops.linalg_check import LINALG_CHECK

WITH_EFFECTS = "with_effects"


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
