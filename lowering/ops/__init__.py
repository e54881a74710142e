"""Lowering rules, one file a family. Importing this package fills the registry; no file collects all ops."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(m.name for m in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
