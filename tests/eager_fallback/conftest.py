"""Every test here has the device: its library is built into the user's cache where it is not there yet."""

from __future__ import annotations

import pytest

import neuron_compiler.eager_fallback  # noqa: F401
from neuron_compiler.eager_fallback import loader


@pytest.fixture(scope="session")
def shim() -> loader.Shim:
    """The loaded library."""
    return loader.loaded()
