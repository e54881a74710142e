"""The names under which ``TORCH_LOGS`` shows this package, and the loggers behind them.

Input: a name of ``ARTIFACTS``. Output: a logger. Invariant: a log line is never lost to a missing registration: where
PyTorch does not know the names (autoload switched off), plain loggers of the same names take their place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

PACKAGE = "neuron_compiler"

ALIAS = "neuron"
"""``TORCH_LOGS=neuron`` sets the level of every logger below ``neuron_compiler``."""

ARTIFACTS: Mapping[str, str] = {
    "neuron_graph": "Prints the captured graph and the program after the last pass as IR text.",
    "neuron_groups": "Prints the fused groups of each graph with their ops, tiles and order.",
    "neuron_hlo": "Prints the StableHLO of each graph and what XLA makes of it.",
    "neuron_fallbacks": "Prints each op that runs eagerly and each random draw, why, and the user's line.",
}
"""Artifact name to the sentence that ``TORCH_LOGS=help`` shows beside it."""

# Long texts: a level on the alias alone does not bring them, they must be named (as Inductor's output_code must be).
ONLY_BY_NAME = frozenset({"neuron_graph", "neuron_groups", "neuron_hlo"})

# The minors of PyTorch whose log registry `register_with_torch` was read against.
TORCH_VERSIONS = ((2, 13), (2, 16))


def register_with_torch() -> None:
    """Enter the alias and the artifacts into PyTorch's log registry; the one use of its private calls.

    Has to run before ``TORCH_LOGS`` is parsed at the end of ``import torch``. Registering again changes nothing.
    Raises RuntimeError where PyTorch's version is outside ``TORCH_VERSIONS``.
    """
    from torch import __version__ as version
    from torch._logging._internal import register_artifact, register_log

    low, high = TORCH_VERSIONS
    if not low <= _minor(version) < high:
        raise RuntimeError(f"PyTorch {version} is not in the range {_dotted(low)} to below {_dotted(high)}")
    register_log(ALIAS, PACKAGE)
    for name, sentence in ARTIFACTS.items():
        register_artifact(name, sentence, visible=True, off_by_default=name in ONLY_BY_NAME)


def artifact_logger(name: str) -> logging.Logger:
    """The logger of one artifact: PyTorch's, or a plain one where PyTorch does not know the name.

    Log at level debug: ``TORCH_LOGS=<name>`` shows everything from there. Raises KeyError for a name that is not in
    ``ARTIFACTS``.
    """
    if name not in ARTIFACTS:
        raise KeyError(f"no log artifact {name!r}; known: {', '.join(ARTIFACTS)}")
    from torch._logging import getArtifactLogger

    try:
        return getArtifactLogger(PACKAGE, name)
    except ValueError:  # not registered
        return logging.getLogger(f"{PACKAGE}.__{name}")


def _minor(version: str) -> tuple[int, int]:
    """Major and minor of a version such as ``2.13.0+cpu``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
