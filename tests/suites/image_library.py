"""``timm``'s models made small.

It imports names of torchvision and PIL that no model needs. Where one of these is missing, or cannot be loaded beside
this torch, stand-ins take its place for as long as that import lasts.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from shrunk import LARGEST_MODEL, NotBuilt, with_weights_that_matter
from steps import Specimen

SETTINGS: tuple[dict[str, Any], ...] = (
    {"img_size": 64, "depth": 2},
    {"img_size": 64, "depths": (1, 1, 1, 1)},
    {"img_size": 64, "num_blocks": 2},
    {"depth": 2},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {"img_size": 64},
    {},
)
"""What is asked of a model's constructor, boldest first; most take only some of these."""

SMALL = ("atto", "femto", "pico", "nano", "xxs", "micro", "tiny", "xs", "small", "_s", "mini", "lite", "b0", "18", "0")
"""Parts of names that mean a small model, smallest first."""


class _Anything(type):
    """A class of which any attribute may be read: another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(name, (), {})
        setattr(cls, name, made)
        return made


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages named and all below them; their attributes are classes made when asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def covers(self, name: str) -> bool:
        return name.partition(".")[0] in self.names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self.covers(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        class Module(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                made = _Anything(name, (), {})
                setattr(self, name, made)
                return made

        module = Module(spec.name)
        module.__version__ = "0.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: attributes come when they are read."""


def _missing() -> list[str]:
    found = []
    for name in ("torchvision", "PIL"):
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError):
            found.append(name)
    return found


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Stand-ins for what is missing; gone afterwards, so that nobody else takes them for the real ones."""
    stand_in = _StandIn(_missing())
    sys.meta_path.insert(0, stand_in)
    try:
        yield
    finally:
        sys.meta_path.remove(stand_in)
        for name in [name for name in sys.modules if stand_in.covers(name)]:
            del sys.modules[name]


@cache
def timm() -> Any:
    """The library; raises ImportError where it is not installed."""
    with _stand_ins():
        return importlib.import_module("timm")


def modules() -> list[str]:
    """Names of the files that define models; nothing is imported. Empty where timm is not installed."""
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return sorted(p.stem for p in folder.glob("[a-z]*.py") if "@register_model" in p.read_text())


def smallest(module: str) -> str:
    """The name of a small model of one file."""
    names = timm().list_models(module=module)
    if not names:
        raise NotBuilt("registers no model")

    def place(name: str) -> tuple[int, int]:
        return next((i for i, part in enumerate(SMALL) if part in name), len(SMALL)), len(name)

    return min(names, key=place)


def build(name: str) -> Specimen:
    """The model of that name, small and with random weights, and two images; raises NotBuilt."""
    library = timm()
    reasons: list[str] = []
    for settings in SETTINGS:
        for side in (64, None):
            try:
                return _made(library, name, settings, side)
            except Exception as error:
                reasons.append(f"{settings}: {type(error).__name__}: {str(error).strip()[:120]}")
    raise NotBuilt(reasons[-1])


def _made(library: Any, name: str, settings: dict[str, Any], side: int | None) -> Specimen:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = library.create_model(name, pretrained=False, num_classes=10, **settings)
        size = sum(p.numel() for p in model.parameters())
        if size > LARGEST_MODEL:
            raise NotBuilt(f"{size / 1e6:.0f} million parameters")
        channels, height, width = model.default_cfg.get("input_size", (3, 224, 224))
        images = torch.randn(2, channels, side or height, side or width)
        with_weights_that_matter(model)
        with torch.no_grad():
            if not bool(model(images).isfinite().all()):
                raise NotBuilt("a result is not finite")
    return Specimen(model, (images,), note=f"{name} {settings}, {side or height} pixels")
