"""jax's factorisations on PyTorch's LAPACK.

jaxlib takes the addresses of LAPACK's routines from SciPy's tables, once in a process, when the first factorisation is
lowered. It is given tables that name PyTorch's routines instead, where PyTorch's library has them: what LAPACK leaves
open, such as the sign of an eigenvector, then comes out as in eager. Where the process has used LAPACK through jax
before, or PyTorch is built without it, SciPy's stay: other signs, as right.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import torch
from jaxlib import lapack

TABLES = ("scipy.linalg.cython_blas", "scipy.linalg.cython_lapack")
"""Modules whose ``__pyx_capi__`` maps a routine's name to a capsule with its address."""


def _library() -> ctypes.CDLL | None:
    """PyTorch's library, in which the symbol search also finds the libraries that it depends on."""
    folder = Path(torch.__file__).parent / "lib"
    found = next(
        (folder / name for name in ("libtorch_cpu.so", "libtorch_cpu.dylib") if (folder / name).exists()), None
    )
    return None if found is None else ctypes.CDLL(str(found))


def _with_addresses(table: ModuleType, library: ctypes.CDLL) -> ModuleType:
    """A module like the table, with the library's address for each routine that it has, under Fortran's name."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_void_p, (ctypes.py_object,)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made = dict(table.__pyx_capi__)
    for routine, known in table.__pyx_capi__.items():
        if (symbol := getattr(library, f"{routine}_", None)) is not None:
            made[routine] = capsule(ctypes.cast(symbol, ctypes.c_void_p).value, name_of(known), None)
    stand_in = ModuleType(table.__name__)
    stand_in.__dict__["__pyx_capi__"] = made
    return stand_in


@contextmanager
def _in_place_of(tables: list[ModuleType], stand_ins: list[ModuleType]) -> Iterator[None]:
    try:
        sys.modules.update({table.__name__: made for table, made in zip(tables, stand_ins, strict=True)})
        yield
    finally:
        sys.modules.update({table.__name__: table for table in tables})


@cache
def load() -> None:
    """Let jaxlib take its addresses now. What lowers to LAPACK calls this before, once for all or not."""
    tables = [importlib.import_module(name) for name in TABLES]
    library = _library()
    stand_ins = tables if library is None else [_with_addresses(table, library) for table in tables]
    with _in_place_of(tables, stand_ins):
        lapack.prepare_lapack_call("potrf_ffi", np.dtype(np.float32))


def target(routine: str, dtype: np.dtype) -> str:  # type: ignore[type-arg]
    """jaxlib's name of a LAPACK routine for an element type."""
    load()
    return str(lapack.prepare_lapack_call(routine, dtype))


def linalg() -> ModuleType:
    """``jax.lax.linalg`` for use in a rule."""
    load()
    return jax.lax.linalg
