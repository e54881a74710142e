"""Gives PyTorch the device ``neuron``: the loaded library, the name, ``torch.neuron``, ``tensor.neuron()``.

In: nothing. Out: PyTorch's PrivateUse1 is ``neuron``. Invariants: once per process, whichever threads ask; nothing is
renamed unless the library is loaded and has registered everything; another package's device is left alone.
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
import threading

import torch

from neuron_compiler import options
from neuron_compiler.eager_fallback import loader
from neuron_compiler.errors import DeviceError

NAME = "neuron"
UNNAMED = "privateuseone"

MEMORY_BYTES = {"trn1": 16 << 30, "trn2": 24 << 30, "trn3": 36 << 30}
"""HBM of what is one device: of each chip the share of one core on Trn1, of two on the others, as Neuron's runtime
joins them by default. Written out, and not asked of the machines' records, for the sake of `import torch`."""

_lock = threading.Lock()
_registered = False


def is_registered() -> bool:
    """Whether this package's device is there."""
    return _registered


def refusal() -> DeviceError | None:
    """Why the device cannot be registered in this process, if so."""
    when = "registering device neuron"
    name = torch._C._get_privateuse1_backend_name()
    if "torch_neuronx" in sys.modules or _installed("torch_neuronx"):
        return DeviceError(
            "torch_neuronx is installed here, and brings a device neuron of its own",
            when=when,
            hint="use an environment without torch_neuronx, or without neuron-compiler",
        )
    if name != UNNAMED:
        return DeviceError(
            f"another package has registered device {name!r}, and PyTorch has room for one such device in a process",
            when=when,
            hint=f"do not import the package of {name!r} here, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import "
            "the one you want",
        )
    if options.device_wanted() is not True and (found := torch.accelerator.current_accelerator(check_available=True)):
        return DeviceError(
            f"this process has another accelerator, {found.type}",
            when=when,
            hint="set NEURON_COMPILER_DEVICE=1 to have device neuron as PyTorch's accelerator instead",
        )
    return None


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a module without a spec
        return False


def memory_limit() -> int:
    """Bytes of one device: what the environment sets, else its share of the chip's memory."""
    return options.device_memory() or MEMORY_BYTES[options.from_environment().target]


def register() -> None:
    """Register the device; the first call builds the library where there is none. Raises DeviceError."""
    global _registered
    with _lock:
        if _registered:
            return
        if (fault := refusal()) is not None:
            raise fault
        shim = loader.load()
        from neuron_compiler.eager_fallback import (
            default_backend,
            device_module,
            dlpack_device,
            dynamo_frames,
            op_ledger,
            optimizer_defaults,
        )

        fallback_mode, eager_mode = options.eager_fallback(), options.eager_mode()
        shim.initialize(options.device_count(), memory_limit())
        atexit.register(shim.rest)
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, device_module)
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        op_ledger.set_fallback_mode(fallback_mode)
        if eager_mode != "each":
            device_module._start_in_eager_mode(eager_mode)
        default_backend.install()
        dlpack_device.install()
        optimizer_defaults.install()
        dynamo_frames.leave_alone(m for n, m in list(sys.modules.items()) if n.startswith(f"{__package__}."))
        _registered = True
