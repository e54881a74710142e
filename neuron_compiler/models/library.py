"""The ``transformers`` library, loaded on first use and without its network.

Models are made from config classes alone, so that nothing is downloaded.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch

from neuron_compiler.errors import OptionsError
from neuron_compiler.models.example import SEED, redraw


def transformers() -> Any:
    """The module; raises OptionsError where it is not installed."""
    try:
        constants = importlib.import_module("huggingface_hub.constants")
        module = importlib.import_module("transformers")
    except ImportError as missing:
        raise OptionsError(
            f"the built-in models need the package {missing.name}, which is not installed",
            hint='pip install "neuron-compiler[models]"',
        ) from missing
    constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    # Advice about kernels for other machines, once per model.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return module


def make(model: str, config: str, /, **settings: Any) -> Any:
    """A model of the class named ``model`` from a config of the class named ``config``, weights redrawn."""
    library = transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return redraw(getattr(library, model)(getattr(library, config)(**settings)))
