"""Running a group written as IR text tile by tile, for the tests of ``trainium.execute``."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import ml_dtypes
import numpy as np

from neuron_compiler import dtypes
from neuron_compiler.interop import device
from neuron_compiler.ir import text, verify
from neuron_compiler.ir.graph import TensorType
from neuron_compiler.ir.plan import Program
from neuron_compiler.trainium import execute
from neuron_compiler.trainium.target import TRN2

Arrays = Mapping[str, np.ndarray]
BF16 = ml_dtypes.bfloat16


def evaluated(program: Program, arrays: Arrays) -> dict[str, np.ndarray]:
    """What the program's one group gives, tile by tile."""
    verify.program(program)
    (group,) = program.plan.groups
    tile = program.plan.tiles.get(group.name)
    assert execute.why_not(program.graph, group, tile) is None
    function = execute.group_function(program.graph, group, tile, TRN2)
    assert function is not None
    with jax.enable_x64(True), jax.default_device(device()):
        compiled = jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})  # compiles faster
        results = compiled({name: jax.numpy.asarray(array) for name, array in arrays.items()})
        return {name: np.asarray(result) for name, result in results.items()}


def run(body: str, plan: str, **arrays: np.ndarray) -> np.ndarray:
    """The one result of a group written as IR text, its inputs being ``arrays``."""
    inputs = ", ".join(f"%{name}: {TensorType(a.shape, dtypes.from_numpy(a.dtype))}" for name, a in arrays.items())
    program = text.parse(f"graph test({inputs}) target=trn2 {{\n{body}\n}}\nplan {{\n{plan}\n}}")
    (result,) = evaluated(program, arrays).values()
    return result


def tile(partition: int, free: int, contraction: int, space: tuple[int, int, int], batch: int = 1) -> str:
    """The line of a tile of group g0; its bytes do not matter here."""
    return (
        f"  tile g0 partition={partition} free={free} contraction={contraction} "
        f"space=[{', '.join(map(str, space))}] batch={batch} sbuf_bytes=0 psum_bytes=0"
    )
