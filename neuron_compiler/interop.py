"""torch ↔ XLA on the same memory, and the XLA CPU client that is ours alone.

The client is our own: jax's default backend is never started, so a user who runs jax sees no difference, and jax's
fork warning is never installed. Everything private to jaxlib sits in this file, behind a version check, with a public
way beside each (``PUBLIC`` picks it; a test runs both).
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jaxlib
import torch
from jax._src.lib import _jax, xla_client

from neuron_compiler import host_library, order_of_equals
from neuron_compiler.errors import RuntimeFault

logger = logging.getLogger(__name__)

PRIVATE_SINCE, PRIVATE_UNTIL = (0, 10), (0, 11)
"""jaxlib minors in which the private calls below have been run."""


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


PUBLIC = not (PRIVATE_SINCE <= _minor(jaxlib.__version__) < PRIVATE_UNTIL)
"""Whether buffers are handed over by jax's public calls: slower, the same results."""

_lock = threading.Lock()
_client: Any = None
_forked = False
_host_calls: frozenset[str] = frozenset()


def _after_fork_in_child() -> None:
    global _forked
    _forked = True


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """One environment variable for the length of the block; the client reads it only while it is created."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def client() -> Any:
    """The process's XLA CPU client: synchronous, with as many threads as torch had when it was made.

    Synchronous, because torch may write to an argument's memory as soon as the call returns.
    Raises RuntimeFault in a forked child, where XLA's threads do not exist and a call would hang.
    """
    global _client, _host_calls
    if _forked:
        raise RuntimeFault(
            f"process {os.getpid()} was forked after the compiled program's runtime had started; "
            "its threads do not exist here",
            when="run",
            hint="start workers with the 'spawn' method: torch.multiprocessing.set_start_method('spawn')",
        )
    if _client is None:
        with _lock:
            if _client is None:
                # XLA sizes its thread pool by this variable, which nothing else in the process reads.
                with _environment("NPROC", str(torch.get_num_threads())):
                    made = xla_client.make_cpu_client(asynchronous=False)
                os.register_at_fork(after_in_child=_after_fork_in_child)
                if (library := _host_library()) is not None:
                    first = {KEEP_SUBNORMALS} if _set_up_subnormals(made, library) else frozenset()
                    _host_calls = _set_up_order(library) | first
                _client = made
    return _client


KEEP_SUBNORMALS = "neuron_keep_subnormals"
"""The custom call that comes first in every program where ``keeps_subnormals``: see host/subnormals.cpp."""

_ON_WORKERS = "neuron_keep_subnormals_on_workers"
_ON_WORKERS_MODULE = f"""
module @keep_subnormals {{
  func.func public @main() -> tensor<ui32> {{
    %0 = stablehlo.custom_call @{_ON_WORKERS}() {{api_version = 4 : i32, has_side_effect = true}} : () -> tensor<ui32>
    return %0 : tensor<ui32>
  }}
}}
"""


def host_calls() -> frozenset[str]:
    """Names of the custom calls of the host's library that programs of this process may contain."""
    client()
    return _host_calls


def keeps_subnormals() -> bool:
    """Whether programs compute with subnormal numbers, as PyTorch does, and do not take them for zero, as XLA does."""
    return KEEP_SUBNORMALS in host_calls()


def orders_as_pytorch(call: str) -> bool:
    """Whether programs may use that call of ``order_of_equals``: it is there and gives PyTorch's order."""
    return call in host_calls()


def _host_library() -> ctypes.CDLL | None:
    path, cause = host_library.find_or_build()
    if path is not None:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            cause = str(error)
    _say_subnormals_are_lost(cause)
    return None


def _say_subnormals_are_lost(cause: str) -> None:
    logger.warning(
        "compiled programs take subnormal numbers for zero, which PyTorch does not: %s (a C++ compiler mends it)", cause
    )


def _register(library: ctypes.CDLL, *names: str) -> None:
    for name in names:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")


def _set_up_subnormals(made: Any, library: ctypes.CDLL) -> bool:
    """Have the client's threads keep subnormal numbers; says so where they cannot."""
    try:
        _register(library, KEEP_SUBNORMALS, _ON_WORKERS)
        executable = _compile(made, _ON_WORKERS_MODULE.encode())
        if int(to_tensor(executable.execute([])[0])):
            return True
        cause = "not every thread of XLA's could be reached"
    except (RuntimeError, ValueError) as error:
        cause = str(error)
    _say_subnormals_are_lost(cause)
    return False


def _set_up_order(library: ctypes.CDLL) -> frozenset[str]:
    """Register the calls that give PyTorch's order of equal elements."""
    calls = order_of_equals.in_pytorchs_order(library)
    try:
        _register(library, *sorted(calls))
    except (RuntimeError, ValueError) as error:
        logger.info("equal elements are sorted stably: %s", error)
        return frozenset()
    return calls


@cache
def _device_of(owner: Any) -> Any:
    return owner.local_devices()[0]


def device() -> Any:
    """The client's one device."""
    return _device_of(client())


def compile_module(bytecode: bytes) -> Any:
    """Compile StableHLO for this host. Holds no lock; releases the interpreter lock while XLA works."""
    return _compile(client(), bytecode)


def _compile(made: Any, module: bytes) -> Any:
    return made.compile_and_load(module, _jax.DeviceList((_device_of(made),)), _compile_options())


def _compile_options() -> Any:
    options = xla_client.CompileOptions()
    options.num_replicas = 1
    options.num_partitions = 1
    # An explicit cast in the traced graph always rounds: XLA may not keep a bf16 value in float32 across one.
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    return options


def serialize(executable: Any) -> bytes:
    """The machine code of a compiled module."""
    return bytes(executable.serialize())


def deserialize(data: bytes) -> Any:
    """What ``serialize`` was given; only for the same jaxlib and a processor that has what it was compiled for.

    Functions of other libraries that it calls must have been loaded.
    """
    return client().deserialize_executable(data, _jax.DeviceList((device(),)), _compile_options())


def optimised_hlo(executable: Any) -> str:
    """What XLA made of a module, as text."""
    return "\n\n".join(module.to_string() for module in executable.hlo_modules())


def to_array(tensor: torch.Tensor) -> Any:
    """The row-major CPU tensor as an array on the same memory; a copy where its address is not 64-byte aligned."""
    if PUBLIC:
        return _to_array_public(tensor)
    return _jax.dlpack_managed_tensor_to_buffer(torch._C._to_dlpack(tensor), device(), None)


def to_tensor(array: Any) -> torch.Tensor:
    """The array as a tensor on the same memory, which it keeps alive."""
    if PUBLIC:
        return _to_tensor_public(array)
    return torch._C._from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array))


def _to_array_public(tensor: torch.Tensor) -> Any:
    from neuron_compiler import dtypes

    tensor = tensor.detach()
    numpy_dtype = dtypes.to_numpy(dtypes.from_torch(tensor.dtype))
    raw = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else None
    with jax.enable_x64(True):
        if raw is None:
            import numpy as np

            return jax.device_put(np.zeros(tuple(tensor.shape), numpy_dtype), device())
        return jax.device_put(raw.view(numpy_dtype).reshape(tuple(tensor.shape)), device())


def _to_tensor_public(array: Any) -> torch.Tensor:
    return torch.from_dlpack(array)
