"""PyTorch for AWS Trainium on a machine that has no Trainium: ``torch.compile(model, backend="neuron")``."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = [
    "LEDGER",
    "CompiledProgram",
    "Options",
    "__version__",
    "compile_exported",
    "load",
    "neuron",
    "recompile_report",
    "run_kernel",
    "save",
]

_PUBLIC = {
    "neuron": "neuron_compiler.capture",
    "LEDGER": "neuron_compiler.ledger",
    "Options": "neuron_compiler.options",
    "recompile_report": "neuron_compiler.report.recompiles",
    "run_kernel": "neuron_compiler.kernels",
    "CompiledProgram": "neuron_compiler.saved.program",
    "compile_exported": "neuron_compiler.saved.exporting",
    "save": "neuron_compiler.saved.saving",
    "load": "neuron_compiler.saved.loading",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that importing the package (as the autoload hook does) imports neither jax nor networkx nor Dynamo.
    if (module := _PUBLIC.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
