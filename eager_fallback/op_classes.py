"""What Trainium's software does with an operator that is called eagerly: the table, as data with its sources.

In: an operator's name with overload. Out: its class. What no source names as run elsewhere counts as run on the chip:
the published lists are those of exceptions.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

OpClass = Literal["chip", "cpu fallback", "host draw", "view"]

CSRC = "https://github.com/parmoham-aws/test-repo-parmoham, commit 98154b8, torch_neuronx/csrc"
"""A public copy of torch-neuronx of April 2026, before the beta."""


LINEAR_ALGEBRA: dict[str, str] = {
    "_cholesky_solve_helper": "out",
    "_linalg_det": "result",
    "_linalg_eigh": "eigenvalues",
    "_linalg_eigvals": "",
    "_linalg_slogdet": "sign",
    "_linalg_solve_ex": "result",
    "_linalg_svd": "U",
    "cholesky": "out",
    "cholesky_inverse": "out",
    "geqrf": "a",
    "linalg_cholesky_ex": "L",
    "linalg_eig": "out",
    "linalg_eigvals": "out",
    "linalg_householder_product": "out",
    "linalg_inv_ex": "inverse",
    "linalg_ldl_factor_ex": "out",
    "linalg_ldl_solve": "out",
    "linalg_lstsq": "out",
    "linalg_lu": "out",
    "linalg_lu_factor_ex": "out",
    "linalg_lu_solve": "out",
    "linalg_qr": "out",
    "linalg_solve_triangular": "out",
    "lu_unpack": "out",
    "ormqr": "out",
    "triangular_solve": "X",
}
"""Operators of the fallback class, with the overload that writes to given tensors. Written out, as asking PyTorch would
slow `import torch`; a test asks it."""


class Source(NamedTuple):
    """One row of the table: operators by name without overload, what is done with them, and who says so."""

    op_class: OpClass
    why: str
    source: str
    operators: tuple[str, ...]


TABLE: tuple[Source, ...] = (
    Source(
        "cpu fallback",
        "a factorization or solve of linear algebra, always run on the CPU",
        f"{CSRC} (lists of operators that fall back)",
        tuple(LINEAR_ALGEBRA),
    ),
    Source(
        "host draw",
        "random numbers are drawn on the CPU, from the CPU's stream, and moved",
        f"{CSRC} (NeuronGenerator.h)",
        (
            "bernoulli",
            "bernoulli_",
            "binomial",
            "cauchy_",
            "exponential_",
            "geometric_",
            "log_normal_",
            "multinomial",
            "normal",
            "normal_",
            "poisson",
            "random_",
            "randperm",
            "uniform_",
        ),
    ),
)

VIEWS = frozenset(
    {"_reshape_alias", "as_strided", "detach", "set_", "unfold", "view", "view_as_complex", "view_as_real"}
)
"""Operators that run no kernel anywhere; other views are made of these."""

FALLBACK_OVERLOADS: tuple[str, ...] = tuple(
    f"aten::{name}" for base, out in LINEAR_ALGEBRA.items() for name in ([base, f"{base}.{out}"] if out else [base])
)
"""Every overload of the fallback class."""

_CLASSES: dict[str, OpClass] = {name: row.op_class for row in TABLE for name in row.operators}


def base_name(name: str) -> str:
    """``linalg_inv_ex`` of ``aten::linalg_inv_ex.inverse``."""
    return name.removeprefix("aten::").split(".")[0]


def op_class(name: str) -> OpClass:
    """Class of an operator, given as ``aten::add.Tensor``; operators of other namespaces are taken to be the chip's."""
    base = base_name(name)
    return "view" if base in VIEWS else _CLASSES.get(base, "chip")
