"""Artifact loggers: PyTorch's where it knows the name, plain ones elsewhere."""

from __future__ import annotations

import logging

import pytest
from torch._logging import _internal

from neuron_compiler import logs


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> _internal.LogRegistry:
    """An empty log registry in the place of PyTorch's."""
    empty = _internal.LogRegistry()
    monkeypatch.setattr(_internal, "log_registry", empty)
    return empty


def test_registers_alias_and_artifacts(registry: _internal.LogRegistry) -> None:
    logs.register_with_torch()
    logs.register_with_torch()
    assert registry.log_alias_to_log_qnames == {"neuron": ["neuron_compiler"]}
    assert registry.artifact_descriptions == dict(logs.ARTIFACTS)
    assert registry.visible_artifacts == set(logs.ARTIFACTS)
    assert registry.off_by_default_artifact_names == {"neuron_graph", "neuron_groups", "neuron_hlo"}


def test_registered_name_gives_the_logger_of_pytorch(registry: _internal.LogRegistry) -> None:
    logs.register_with_torch()
    logger = logs.artifact_logger("neuron_fallbacks")
    assert logger.artifact_name == "neuron_fallbacks"  # type: ignore[attr-defined]
    assert registry.artifact_log_qnames == {logger.name} == {"neuron_compiler.__neuron_fallbacks"}


def test_unregistered_name_gives_a_plain_logger(registry: _internal.LogRegistry) -> None:
    logger = logs.artifact_logger("neuron_groups")
    assert logger is logging.getLogger("neuron_compiler.__neuron_groups")
    assert registry.artifact_log_qnames == set()


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="no log artifact 'neuron_grpah'; known: neuron_graph, "):
        logs.artifact_logger("neuron_grpah")


@pytest.mark.parametrize(
    ("version", "minor"), [("2.13.0", (2, 13)), ("2.15.1+cpu", (2, 15)), ("2.16.0a0+git1", (2, 16))]
)
def test_minor_of_a_version(version: str, minor: tuple[int, int]) -> None:
    assert logs._minor(version) == minor


def test_sentences_are_sentences_and_names_fit_the_help_column() -> None:
    for name, sentence in logs.ARTIFACTS.items():
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert len(name) <= 30
