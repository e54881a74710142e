"""Every option, in one frozen record; the only reader of environment variables.

``torch.compile(model, backend="neuron", options={...})`` goes before the environment, which goes before the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from neuron_compiler.errors import OptionsError

TARGETS = ("trn1", "trn2", "trn3")
EMULATIONS = ("off", "tile")
VERIFY_LEVELS = ("off", "stage", "every")
MAX_DEVICES = 128
EAGER_MODES = ("each", "fused", "compiled")
FALLBACK_MODES = ("silent", "warn", "error")
POWERS_OF_2 = "powers_of_2"
MULTIPLES_OF = "multiples_of_"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Options:
    """How one ``torch.compile`` call compiles.

    Attributes:
        target: chip that groups are tiled for. ``NEURON_COMPILER_TARGET``.
        dump: folder that every stage is written to; None writes nothing. ``NEURON_COMPILER_DUMP``.
        strict: an op that cannot be compiled raises UnsupportedOp instead of running eagerly.
            ``NEURON_COMPILER_STRICT``.
        emulation: ``"tile"`` runs the groups that have a tile, tile by tile, with the chip's accumulation.
            ``NEURON_COMPILER_EMULATION``.
        verify: ``"off"``; ``"stage"`` checks the captured and the final program; ``"every"`` checks after each pass.
            ``NEURON_COMPILER_VERIFY``.
        pass_limit: number of pass applications after which passes stop, for bisection; None has no limit.
            ``NEURON_COMPILER_PASS_LIMIT``.
        program_cache_size: how many bindings of a dynamic graph's symbols are kept compiled, least recently used
            dropped first. ``NEURON_COMPILER_PROGRAM_CACHE_SIZE``.
        buckets: sizes that dynamic ones are padded to where that provably changes no result: a tuple of sizes,
            ``"powers_of_2"`` or ``"multiples_of_64"`` (any number); None pads nothing. ``NEURON_COMPILER_BUCKETS``.
        recompile_warning: after how many recompiles of one function a RecompileWarning says why; None for never.
            ``NEURON_COMPILER_RECOMPILE_WARNING``.
    """

    target: str = "trn2"
    dump: str | None = None
    strict: bool = False
    emulation: str = "off"
    verify: str = "stage"
    pass_limit: int | None = None
    program_cache_size: int = 64
    buckets: str | tuple[int, ...] | None = None
    recompile_warning: int | None = 5

    def __post_init__(self) -> None:
        _one_of("target", self.target, TARGETS)
        _one_of("emulation", self.emulation, EMULATIONS)
        _one_of("verify", self.verify, VERIFY_LEVELS)
        if not isinstance(self.strict, bool):
            raise OptionsError(f"option 'strict' takes True or False, not {self.strict!r}")
        if self.dump is not None and not isinstance(self.dump, str | os.PathLike):
            raise OptionsError(f"option 'dump' takes a folder, not {self.dump!r}")
        if self.pass_limit is not None and (not _is_count(self.pass_limit) or self.pass_limit < 0):
            raise OptionsError(f"option 'pass_limit' takes a whole number from 0 or None, not {self.pass_limit!r}")
        if not _is_count(self.program_cache_size) or self.program_cache_size < 1:
            raise OptionsError(
                f"option 'program_cache_size' takes a whole number from 1, not {self.program_cache_size!r}"
            )
        if self.recompile_warning is not None and (not _is_count(self.recompile_warning) or self.recompile_warning < 1):
            raise OptionsError(
                f"option 'recompile_warning' takes a whole number from 1 or None, not {self.recompile_warning!r}"
            )
        object.__setattr__(self, "buckets", _buckets(self.buckets))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _buckets(given: object) -> str | tuple[int, ...] | None:
    """The option's value in its one form: sizes as a tuple in rising order."""
    if given is None or given == POWERS_OF_2:
        return given
    if isinstance(given, str) and given.startswith(MULTIPLES_OF):
        step = given.removeprefix(MULTIPLES_OF)
        if step.isascii() and step.isdecimal() and int(step) >= 1:
            return f"{MULTIPLES_OF}{int(step)}"
    if isinstance(given, tuple | list) and given and all(_is_count(size) and size >= 2 for size in given):
        return tuple(sorted(set(given)))
    raise OptionsError(
        f"option 'buckets' takes sizes from 2, {POWERS_OF_2!r}, '{MULTIPLES_OF}64' or None, not {given!r}"
    )


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionsError(f"option {name!r} is {value!r}; it takes one of {', '.join(map(repr, known))}")


KNOWN = tuple(f.name for f in fields(Options))
ENVIRONMENT: Mapping[str, str] = {f"NEURON_COMPILER_{name.upper()}": name for name in KNOWN}


def _parse(variable: str, name: str, text: str) -> Any:
    """Value of an environment variable, by the type of the option it sets."""
    if name == "strict":
        lowered = text.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off", ""):
            return False
        raise OptionsError(f"{variable} is {text!r}; it takes 1 or 0")
    if name in ("pass_limit", "program_cache_size", "recompile_warning"):
        try:
            return int(text)
        except ValueError:
            raise OptionsError(f"{variable} is {text!r}; it takes a whole number") from None
    if name == "buckets" and text[:1].isdecimal():
        parts = [part.strip() for part in text.split(",")]
        return tuple(int(part) if part.isascii() and part.isdecimal() else part for part in parts)
    return text


def from_environment(environ: Mapping[str, str] | None = None) -> Options:
    """The defaults as the environment changes them."""
    environ = os.environ if environ is None else environ
    found = Options()
    for variable, name in ENVIRONMENT.items():
        if text := environ.get(variable):
            value = _parse(variable, name, text)
            try:
                found = replace(found, **{name: value})
            except OptionsError as error:
                raise OptionsError(f"{error.what} (set by {variable})") from None
    return found


def from_call(
    mode: str | None = None, options: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Options:
    """Options of one ``torch.compile(mode=, options=)`` call.

    Every mode that PyTorch knows is accepted; they ask for the same thing here. Raises OptionsError for an unknown
    mode or key, with the known ones listed.
    """
    if mode is not None:
        _one_of("mode", mode, MODES)
    base = from_environment(environ)
    if not options:
        return base
    unknown = [key for key in options if key not in KNOWN]
    if unknown:
        raise OptionsError(
            f"unknown option{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}",
            hint=f"known: {', '.join(KNOWN)}",
        )
    return replace(base, **options)


def torch_compile_debug(environ: Mapping[str, str] | None = None) -> bool:
    """Whether PyTorch's ``TORCH_COMPILE_DEBUG=1`` asks for a dump folder beside its own."""
    return (os.environ if environ is None else environ).get("TORCH_COMPILE_DEBUG", "0") == "1"


def terminal_shows_progress(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a terminal can erase a line (``TERM``) and a person watches it (no ``CI``)."""
    environ = os.environ if environ is None else environ
    return environ.get("TERM", "") not in ("", "dumb") and environ.get("CI", "").lower() in ("", "0", "false")


def autoload_disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Whether PyTorch's ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` keeps our hook from running."""
    return (os.environ if environ is None else environ).get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where what was built once is kept: ``NEURON_COMPILER_CACHE``, else ``neuron_compiler`` in the user's cache."""
    environ = os.environ if environ is None else environ
    if given := environ.get("NEURON_COMPILER_CACHE"):
        return Path(given).expanduser()
    base = environ.get("XDG_CACHE_HOME", "")
    # The specification has paths that are not absolute ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "neuron_compiler"


def device_wanted(environ: Mapping[str, str] | None = None) -> bool | None:
    """``NEURON_COMPILER_DEVICE``: 1 registers device neuron beside another accelerator, 0 keeps ``import torch`` from
    registering it; None, unset, registers it where there is no other.
    """
    variable = "NEURON_COMPILER_DEVICE"
    text = (os.environ if environ is None else environ).get(variable, "")
    return _parse(variable, "strict", text) if text else None


def device_count(environ: Mapping[str, str] | None = None) -> int:
    """How many devices there are: ``NEURON_RT_VISIBLE_CORES`` lists them, ``NEURON_RT_NUM_CORES`` counts them; else 1.

    Cores are listed as Neuron's runtime has it: ``4``, ``0-3``, ``0,2,5-7``. Raises OptionsError for another text.
    """
    environ = os.environ if environ is None else environ
    variable = "NEURON_RT_VISIBLE_CORES" if environ.get("NEURON_RT_VISIBLE_CORES") else "NEURON_RT_NUM_CORES"
    text = environ.get(variable, "") or "1"
    try:
        if variable == "NEURON_RT_NUM_CORES":
            count = int(text)
        else:
            ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
            cores = [core for end in ends for core in range(end[0], end[-1] + 1) if len(end) <= 2]
            count = len(set(cores))
    except ValueError:
        count = 0
    if not 1 <= count <= MAX_DEVICES:
        raise OptionsError(f"{variable} is {text!r}; it takes cores or a number of cores, from 1 to {MAX_DEVICES}")
    return count


def device_memory(environ: Mapping[str, str] | None = None) -> int | None:
    """Bytes of memory of each device, where ``NEURON_COMPILER_DEVICE_MEMORY`` sets them."""
    variable = "NEURON_COMPILER_DEVICE_MEMORY"
    text = (os.environ if environ is None else environ).get(variable, "")
    if not text:
        return None
    if not text.strip().isdecimal():
        raise OptionsError(f"{variable} is {text!r}; it takes a number of bytes")
    return int(text)


def eager_fallback(environ: Mapping[str, str] | None = None) -> str:
    """``NEURON_COMPILER_EAGER_FALLBACK``: what an op on device neuron does that Trainium's software runs on the CPU.

    ``silent`` nothing; ``warn``, the default, logs each once; ``error`` raises. Raises OptionsError for another text.
    """
    variable = "NEURON_COMPILER_EAGER_FALLBACK"
    text = (os.environ if environ is None else environ).get(variable, "") or "warn"
    if text not in FALLBACK_MODES:
        raise OptionsError(f"{variable} is {text!r}; it takes one of {', '.join(FALLBACK_MODES)}")
    return text


def eager_mode(environ: Mapping[str, str] | None = None) -> str:
    """``NEURON_COMPILER_EAGER_MODE``: how operators on device neuron run that nobody has compiled.

    ``each``, the default, at once by its kernel; ``fused`` together, when a value is needed; ``compiled`` at once, by
    the compiler's rules. Raises OptionsError for another text.
    """
    variable = "NEURON_COMPILER_EAGER_MODE"
    text = (os.environ if environ is None else environ).get(variable, "") or "each"
    if text not in EAGER_MODES:
        raise OptionsError(f"{variable} is {text!r}; it takes one of {', '.join(EAGER_MODES)}")
    return text


def cxx(environ: Mapping[str, str] | None = None) -> str:
    """The C++ compiler: ``CXX``, else ``c++``."""
    return (os.environ if environ is None else environ).get("CXX") or "c++"


SHOWN_PREFIXES = ("NEURON_", "TORCH", "XLA_", "JAX_", "OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "HF_HUB_")
SHOWN_NAMES = ("CXX", "CI", "TERM", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONWARNINGS", "MALLOC_CONF")


def shown_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that are set and change how programs are compiled or run here: for reports."""
    environ = os.environ if environ is None else environ
    return {k: v for k, v in environ.items() if k.startswith(SHOWN_PREFIXES) or k in SHOWN_NAMES}
