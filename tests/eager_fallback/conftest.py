"""Every test here has the device: its library is built into the user's cache where it is not there yet.

Where that takes a compiler and there is none, the folder is left out, with a warning.
"""

from __future__ import annotations

import shutil
import warnings

import pytest

from neuron_compiler import device_library, options

if device_library.find() is None and shutil.which(options.cxx()) is None:
    warnings.warn(f"device neuron is not tested: it is not built and there is no {options.cxx()}", stacklevel=1)
    collect_ignore_glob = ["test_*.py"]
else:
    import neuron_compiler.eager_fallback  # noqa: F401


@pytest.fixture(scope="session")
def shim():  # type: ignore[no-untyped-def]
    """The loaded library, a ``loader.Shim``."""
    from neuron_compiler.eager_fallback import loader

    return loader.loaded()
