"""``python -m neuron_compiler`` is the command ``neuron-compiler``."""

from __future__ import annotations

import sys

from neuron_compiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
