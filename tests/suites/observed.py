"""One call, with all that a caller can see of it: results, their memory, gradients, what became of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

Near = Callable[[str, torch.Tensor, torch.Tensor], str]
"""What is wrong with the elements of a tensor (its name, ours, eager's); empty where nothing is."""


@dataclass(frozen=True)
class Observed:
    """What one call did.

    Attributes:
        results: leaves of what was returned, in order.
        structure: how the leaves were nested.
        gradients: of the leaves among the arguments, where the call was differentiated.
        arguments: tensors among the arguments, after the call.
        sharing: for each tensor returned, the first argument or earlier result in the same storage, and how many
            bytes behind it this one starts; None for memory of its own.
    """

    results: list[Any]
    structure: pytree.TreeSpec
    gradients: list[torch.Tensor | None]
    arguments: list[torch.Tensor]
    sharing: list[tuple[str, int] | None]


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in a tree, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@dataclass
class _Copier:
    """Copies tensors with their strides, so that what shared memory before shares memory after."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    made: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self.made:
            self.made[id(x)] = self._copy(x).requires_grad_(x.requires_grad)
        return self.made[id(x)]

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        if x.layout is not torch.strided or x.is_conj() or x.is_neg() or not x.untyped_storage().nbytes():
            return x.detach().clone()
        storage = x.untyped_storage()
        copy = self.storages.setdefault(storage.data_ptr(), storage.clone())
        return torch.empty(0, dtype=x.dtype).set_(copy, x.storage_offset(), x.shape, x.stride())  # type: ignore[call-overload]


def copies(tree: Any) -> Any:
    """The tree with fresh leaves: equal elements, strides, sharing and wish for gradients."""
    return pytree.tree_map(_Copier(), tree)


def leaves(tree: Any) -> list[torch.Tensor]:
    """The distinct tensors in a tree that want a gradient."""
    return list({id(x): x for x in tensors(tree) if x.requires_grad}.values())


def cotangents(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Fixed random factors of the results' shapes and dtypes: a gradient of their weighted sum hides no element."""
    numbers = torch.Generator().manual_seed(7)
    return [
        torch.randn(x.shape, generator=numbers, dtype=torch.complex64 if x.is_complex() else torch.float32).to(x.dtype)
        for x in outputs
    ]


def differentiable(outputs: Any) -> list[torch.Tensor]:
    """The results that gradients flow from."""
    return [x for x in tensors(outputs) if x.requires_grad and x.layout is torch.strided]


def sharing(results: Iterable[torch.Tensor], arguments: Iterable[torch.Tensor]) -> list[tuple[str, int] | None]:
    """Which memory each result lies in; see ``Observed``."""
    owners: dict[int, tuple[str, int]] = {}
    for index, x in enumerate(arguments):
        if (pointer := _storage(x)) is not None:
            owners.setdefault(pointer, (f"argument {index}", x.data_ptr()))
    found: list[tuple[str, int] | None] = []
    for index, x in enumerate(results):
        if (pointer := _storage(x)) is None or not x.numel():
            found.append(None)
            continue
        owner, start = owners.setdefault(pointer, (f"result {index}", x.data_ptr()))
        found.append(None if owner == f"result {index}" else (owner, x.data_ptr() - start))
    return found


def _storage(x: torch.Tensor) -> int | None:
    """Address of a tensor's memory; None where it has none."""
    return (x.untyped_storage().data_ptr() or None) if x.layout is torch.strided else None


def observe(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    gradients: bool = False,
    wanted_of: Callable[[Any], Any] = lambda outputs: outputs,
    seed: int = 1,
) -> Observed:
    """Call a function on copies of the arguments, with the generator seeded.

    Args:
        function: called with the copies.
        arguments: any nesting of tensors and other values; left as they are.
        gradients: call it with gradients on and take those of a fixed weighted sum of the results.
        wanted_of: what of the results is differentiated.
        seed: of PyTorch's generator.
    """
    own = copies(tuple(arguments))
    given = tensors(own)
    torch.manual_seed(seed)
    with torch.set_grad_enabled(gradients):
        outputs = function(*own)
    results, structure = pytree.tree_flatten(outputs)
    found: list[torch.Tensor | None] = []
    shared = sharing([x for x in results if isinstance(x, torch.Tensor)], given)
    if gradients:
        roots, wrt = differentiable(wanted_of(outputs)), leaves(own)
        if roots and wrt:
            found = list(torch.autograd.grad(roots, wrt, cotangents(roots), allow_unused=True))
    return Observed(results, structure, found, given, shared)


def faults(got: Observed, want: Observed, near: Near) -> list[str]:
    """Everything in which one call differs from another, a line each."""
    found: list[str] = []
    if len(got.results) != len(want.results):
        return [f"{len(got.results)} results instead of {len(want.results)}"]
    if got.structure != want.structure:
        found.append(f"results nested as {got.structure} instead of {want.structure}")
    for index, (a, b) in enumerate(zip(got.results, want.results, strict=True)):
        found += _leaf_faults(f"result {index}", a, b, near)
    if got.sharing != want.sharing:
        found.append(f"memory shared with {got.sharing} instead of {want.sharing}")
    for index, (a, b) in enumerate(zip(got.arguments, want.arguments, strict=True)):
        found += _leaf_faults(f"argument {index} after the call", a, b, near)
    if len(got.gradients) != len(want.gradients):
        found.append(f"{len(got.gradients)} gradients instead of {len(want.gradients)}")
    else:
        for index, (a, b) in enumerate(zip(got.gradients, want.gradients, strict=True)):
            found += _leaf_faults(f"gradient {index}", a, b, near, strides=False)
    return found


def _leaf_faults(name: str, got: Any, want: Any, near: Near, strides: bool = True) -> list[str]:
    if isinstance(got, torch.Tensor) != isinstance(want, torch.Tensor) or (got is None) != (want is None):
        return [f"{name}: {type(got).__name__} instead of {type(want).__name__}"]
    if not isinstance(want, torch.Tensor):
        same = got == want or (isinstance(want, float) and (got != got) == (want != want) and abs(got - want) < 1e-5)
        return [] if same else [f"{name}: {got!r} instead of {want!r}"]
    for what in ("dtype", "shape", "layout", "device", "requires_grad"):
        a, b = getattr(got, what), getattr(want, what)
        if a != b:
            return [f"{name}: {what} {a} instead of {b}"]
    if strides and want.layout is torch.strided and want.numel() and _steps(got) != _steps(want):
        return [f"{name}: strides {got.stride()} instead of {want.stride()} at {tuple(want.shape)}"]
    wrong = near(name, got.detach(), want.detach())
    return [f"{name}: {wrong}"] if wrong else []


def _steps(x: torch.Tensor) -> list[int]:
    """Strides that matter: those of dimensions longer than 1."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
