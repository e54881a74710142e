"""Every exception of the package, in one shape: what is wrong, where, when, what to try.

``str(error)`` holds those four lines and stays short enough to assert in a test; the program around the
fault goes into ``add_note``, which Python prints below the traceback.
"""

from __future__ import annotations


class NeuronCompilerError(Exception):
    """Base of all errors raised by neuron_compiler.

    Args:
        what: one sentence, with the offending values in it.
        op: the IR line at fault, as printed.
        loc: the user's ``file:line`` that the op came from.
        when: the pass or stage that found it.
        hint: what to try: a command, an option, or the place to add code.

    Attributes:
        failure: where a pass failed, the ``passes.base.Failure`` with the program before it and after; else None.
    """

    def __init__(self, what: str, *, op: str = "", loc: str = "", when: str = "", hint: str = "") -> None:
        self.what, self.op, self.loc, self.when, self.hint = what, op, loc, when, hint
        self.failure: object = None
        lines = [what]
        if op:
            lines.append(f"  op: {op}")
        if loc:
            lines.append(f"  at: {loc}")
        if when:
            lines.append(f"  in: {when}")
        if hint:
            lines.append(f"  try: {hint}")
        super().__init__("\n".join(lines))

    def suggest(self, hint: str) -> None:
        """Add a last line to the message: what to try, known only to who sees the error pass by.

        A note would not do: PyTorch passes on the message of a backend's error, and drops its notes.
        """
        self.hint = hint
        self.args = (f"{self}\n  try: {hint}",)


class OptionsError(NeuronCompilerError, ValueError):
    """An option is unknown or has a value that it cannot take."""


class CaptureError(NeuronCompilerError):
    """The FX graph holds something that cannot be read into a Graph."""


class UnsupportedOp(NeuronCompilerError):
    """An op has no lowering and ``strict=True`` forbids running it eagerly."""


class LoweringError(NeuronCompilerError):
    """A lowering rule raised, or gave another type than PyTorch recorded."""


class VerifyError(NeuronCompilerError):
    """A Program breaks an invariant of the IR."""


class ParseError(NeuronCompilerError, ValueError):
    """A text is not a Program; names the line and column."""


class PassError(NeuronCompilerError):
    """A pass raised something that is no error of this package, or broke the contract of passes."""


class CapacityError(NeuronCompilerError):
    """A plan needs more of a memory space than the target has."""


class DumpError(NeuronCompilerError):
    """A dump cannot be written; names the folder."""


class ArtifactError(NeuronCompilerError, ValueError):
    """A compiled program cannot be saved, a file is none that can be loaded, or weights do not belong to it."""


class RuntimeFault(NeuronCompilerError, RuntimeError):
    """A compiled program cannot run: wrong arguments, a forked process, an error reported by the executable."""


class DeviceError(NeuronCompilerError, RuntimeError):
    """Device neuron cannot be built, or not be registered in this process."""


class RecompileWarning(UserWarning):
    """One function is compiled again and again; the text is the report of why."""
