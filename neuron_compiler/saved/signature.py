"""The calling convention of a compiled program: how it is called, what is checked, where the sizes come from.

In: a call's arguments. Out: the flat arguments and the numbers of the symbols, or RuntimeFault, which says which
argument is wrong. Invariant: all of it is plain data, with a form in JSON; no graph is needed to check a call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuron_compiler.errors import ArtifactError, RuntimeFault
from neuron_compiler.saved import expression, values

Size = int | str
WHEN = "the call of a compiled program"


@dataclass(frozen=True)
class TensorInput:
    """A tensor: sizes are numbers or expressions of symbols."""

    dtype: torch.dtype
    size: tuple[Size, ...]
    device: torch.device

    def __str__(self) -> str:
        return f"{values.dtype_name(self.dtype)}[{', '.join(map(str, self.size))}] on {self.device}"


@dataclass(frozen=True)
class SizeInput:
    """A whole number that the program's sizes depend on."""

    size: Size

    def __str__(self) -> str:
        return str(self.size)


@dataclass(frozen=True)
class ValueInput:
    """A value that the program was made for: no other is accepted."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


Input = TensorInput | SizeInput | ValueInput


@dataclass(frozen=True)
class Read:
    """Where a symbol's number is read: ``scale * symbol + shift`` stands at a dimension of an argument."""

    symbol: str
    argument: int
    dimension: int | None = None
    of_stride: bool = False
    scale: int = 1
    shift: int = 0


@dataclass(frozen=True)
class Signature:
    """All of it.

    Attributes:
        inputs: what each of the user's arguments must be, flat.
        arguments: what the graph is given: a weight's name, the index of a user's argument, None for a token.
        tokens: number of results in front that are not the user's.
        reads: where each symbol is read, in the order of the keys of bindings.
        ranges: lowest and highest of expressions; None without limit.
        guards: conditions on sizes.
        in_spec, out_spec: trees of arguments and results.
    """

    inputs: tuple[Input, ...]
    arguments: tuple[str | int | None, ...]
    tokens: int
    reads: tuple[Read, ...]
    ranges: Mapping[str, tuple[int | None, int | None]]
    guards: tuple[str, ...]
    in_spec: Any
    out_spec: Any

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """What to call each of the user's arguments in a message: ``argument 0``, ``argument mask['a']``."""
        args, kwargs = pytree.tree_unflatten(list(range(self.in_spec.num_leaves)), self.in_spec)
        found = [""] * self.in_spec.num_leaves
        for root, tree in [*enumerate(args), *kwargs.items()]:
            for path, index in pytree.tree_leaves_with_path(tree):
                found[index] = f"argument {root}{pytree.keystr(path)}"
        return tuple(found)

    @functools.cached_property
    def _parsed(self) -> tuple[Any, ...]:
        """The conditions with what to say where they do not hold; made once."""
        ranges = [(text, expression.parse(text), low, high) for text, (low, high) in self.ranges.items()]
        return ranges, [(text, expression.parse(text)) for text in self.guards]

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """A call's arguments in the order of ``inputs``; RuntimeFault where their structure is another."""
        takes_args, takes_kwargs = self.in_spec.children()
        if kwargs.keys() != set(takes_kwargs.context) or len(args) != takes_args.num_children:
            raise RuntimeFault(
                f"called with {_call(len(args), kwargs)}, and compiled for "
                f"{_call(takes_args.num_children, takes_kwargs.context)}",
                when=WHEN,
                hint="give arguments by position and by name as in torch.export.export",
            )
        ordered = {name: kwargs[name] for name in takes_kwargs.context}
        try:
            return list(self.in_spec.flatten_up_to((args, ordered)))
        except (ValueError, TypeError) as error:
            raise RuntimeFault(f"the arguments are nested otherwise than compiled for: {error}", when=WHEN) from None

    def key(self, flat: Sequence[Any]) -> tuple[int, ...]:
        """The numbers of the symbols in a call; RuntimeFault for an argument that the program was not made for."""
        grad = torch.is_grad_enabled()
        for index, (given, wanted) in enumerate(zip(flat, self.inputs, strict=True)):
            if isinstance(wanted, TensorInput):
                self._check_tensor(index, given, wanted, grad)
            elif isinstance(wanted, ValueInput):
                if not _same(given, wanted.value):
                    self._refuse(index, f"is {given!r}; the program was compiled for {wanted.value!r}")
            elif type(given) is not int:
                self._refuse(index, f"is {given!r}, not a whole number")
        if not self.reads and not self.guards:
            return ()
        return self._symbols(flat)

    def _check_tensor(self, index: int, given: Any, wanted: TensorInput, grad: bool) -> None:
        if not isinstance(given, torch.Tensor):
            self._refuse(index, f"is {type(given).__name__}, not a tensor {wanted}")
        if given.dtype != wanted.dtype:
            self._refuse(index, f"is of type {values.dtype_name(given.dtype)}; compiled for {wanted}")
        if given.device != wanted.device:
            self._refuse(index, f"lies on {given.device}; compiled for {wanted}")
        if given.layout is not torch.strided or given.is_nested or given.is_quantized:
            self._refuse(index, f"is no plain tensor: {given.layout}; compiled for {wanted}")
        if given.dim() != len(wanted.size) or any(
            type(size) is int and size != found for size, found in zip(wanted.size, given.shape, strict=True)
        ):
            self._refuse(index, f"has sizes {list(given.shape)}; compiled for {wanted}")
        if grad and given.requires_grad:
            self._refuse(
                index,
                "requires a gradient, and a compiled export has no backward",
                "call it under torch.no_grad(), or detach the argument; torch.compile compiles the backward too",
            )

    def _symbols(self, flat: Sequence[Any]) -> tuple[int, ...]:
        numbers: dict[str, Any] = {}
        for read in self.reads:
            value = flat[read.argument]
            if read.dimension is not None:
                value = value.stride(read.dimension) if read.of_stride else value.size(read.dimension)
            number, rest = divmod(value - read.shift, read.scale)
            if rest:
                text = f"{read.scale}*{read.symbol}" + (f" + {read.shift}" if read.shift else "")
                self._refuse(read.argument, f"has size {value} at dimension {read.dimension}, which is no {text}")
            numbers[read.symbol] = number
        key = tuple(numbers.values())
        for index, wanted in enumerate(self.inputs):
            sizes = [*enumerate(getattr(wanted, "size", ()))] if isinstance(wanted, TensorInput) else []
            found: Sequence[Any] = flat[index].shape if sizes else ()
            if isinstance(wanted, SizeInput):
                sizes, found = [(0, wanted.size)], [flat[index]]
            for dimension, size in sizes:
                if isinstance(size, str) and expression.evaluate(size, numbers) != found[dimension]:
                    where = f" = {size} at dimension {dimension}"
                    bound = ", ".join(f"{name} = {number}" for name, number in numbers.items())
                    self._refuse(index, f"has {found[dimension]} where the program has {size}{where} with {bound}")
        self._check_conditions(flat, numbers)
        return key

    def _check_conditions(self, flat: Sequence[Any], numbers: dict[str, Any]) -> None:
        ranges, guards = self._parsed
        for text, function, low, high in ranges:
            if any(name not in numbers for name in _names_in(text)):
                continue  # a symbol that depends on data
            number = function(numbers)
            # As in PyTorch, which exports for 2 and more, and has the program run for 0 and 1 as well.
            if (low is not None and low > 2 and number < low) or (high is not None and number > high):
                limits = f"from {low}" if high is None else f"from {low} to {high}"
                raise RuntimeFault(f"{text} is {number}; the program takes {limits}{self._where(text)}", when=WHEN)
        if not guards:
            return
        known = dict(numbers)
        for index, given in enumerate(flat):
            known[f"argument_{index}"] = given
            if isinstance(given, torch.Tensor):
                for dimension, (size, stride) in enumerate(zip(given.shape, given.stride(), strict=True)):
                    known[f"size_{index}_{dimension}"], known[f"stride_{index}_{dimension}"] = size, stride
        for text, function in guards:
            if not function(known):
                raise RuntimeFault(
                    f"the program was exported for arguments with {self._readable(text)}, and this call's are not so",
                    when=WHEN,
                    hint="export it again with an example of these sizes",
                )

    def _where(self, symbol: str) -> str:
        found = next((read for read in self.reads if read.symbol == symbol), None)
        return "" if found is None else f" (dimension {found.dimension} of {self.names[found.argument]})"

    def _readable(self, guard: str) -> str:
        import re

        def size(match: re.Match[str]) -> str:
            return f"{self.names[int(match[2])]}.{match[1]}({match[3]})"

        return re.sub(r"(size|stride)_(\d+)_(\d+)", size, guard)

    def _refuse(self, index: int, what: str, hint: str = "") -> None:
        raise RuntimeFault(f"{self.names[index]} {what}", when=WHEN, hint=hint)

    # --- as JSON -----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Raises Inexpressible for a value or a tree that has no form in a file."""
        return {
            "inputs": [_input_to_json(item) for item in self.inputs],
            "arguments": list(self.arguments),
            "tokens": self.tokens,
            "reads": [vars(read) for read in self.reads],
            "ranges": {text: list(limits) for text, limits in self.ranges.items()},
            "guards": list(self.guards),
            "in_spec": _tree_to_json(self.in_spec),
            "out_spec": _tree_to_json(self.out_spec),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Signature:
        return cls(
            tuple(_input_from_json(item) for item in found["inputs"]),
            tuple(found["arguments"]),
            found["tokens"],
            tuple(Read(**read) for read in found["reads"]),
            {text: (low, high) for text, (low, high) in found["ranges"].items()},
            tuple(found["guards"]),
            _tree_from_json(found["in_spec"]),
            _tree_from_json(found["out_spec"]),
        )


def _names_in(text: str) -> frozenset[str]:
    import re

    return frozenset(re.findall(r"\b[suz]\w*\d+\b", text))


def _call(count: int, kwargs: Any) -> str:
    names = ", ".join(kwargs)
    return f"{count} argument{'s' * (count != 1)} by position" + (f" and {names} by name" if names else "")


def _same(given: Any, wanted: Any) -> bool:
    if type(given) is not type(wanted):
        return False
    return bool(given == wanted) or (given != given and wanted != wanted)  # a NaN is itself


def _input_to_json(item: Input) -> dict[str, Any]:
    if isinstance(item, TensorInput):
        return {"tensor": [values.dtype_name(item.dtype), list(item.size), str(item.device)]}
    return {"size": item.size} if isinstance(item, SizeInput) else {"value": values.encode(item.value)}


def _input_from_json(found: Mapping[str, Any]) -> Input:
    if "tensor" in found:
        dtype, size, device = found["tensor"]
        return TensorInput(values.dtype(dtype), tuple(size), values.device(device))
    return SizeInput(found["size"]) if "size" in found else ValueInput(values.decode(found["value"]))


def _tree_to_json(spec: Any) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise values.Inexpressible(f"its arguments or results are nested in a type without a name: {error}") from None


def _tree_from_json(text: str) -> Any:
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"the arguments or results are nested in a type that is not registered here: {error}",
            when="load",
            hint="register it with torch.export.register_dataclass before loading",
        ) from None
