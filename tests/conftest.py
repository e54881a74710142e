"""Every test verifies after each pass, starts with empty counters, writes no dump and reaches no network."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports huggingface_hub, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

TESTS = Path(__file__).parent

# In the order they run: a broken unit explains a broken model, not the other way round.
FOLDERS = ("ir", "trainium", "neuron_compiler", "passes", "lowering", "eager_fallback", "suites", "end_to_end")
