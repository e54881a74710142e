"""An exported program as JSON, for sizes that it will be called with later: PyTorch's own form, without its weights.

In: an ExportedProgram. Out: bytes, and back with the weights of the file. PyTorch's own files keep the same text beside
pickled tensors; here nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch._export.serde import schema, serialize
from torch.export import ExportedProgram
from torch.nn import Parameter

from neuron_compiler.errors import ArtifactError
from neuron_compiler.saved.program import WeightInfo
from neuron_compiler.saved.values import Inexpressible


def dumps(program: ExportedProgram) -> bytes:
    """The program's graph, signature, ranges and guards; raises Inexpressible where PyTorch has no form for it."""
    writer = serialize.ExportedProgramSerializer()
    try:
        found = writer.serialize(
            program, serialize_state_dict=False, serialize_constants=False, serialize_example_inputs=False
        )
        text = json.dumps(
            serialize._dataclass_to_dict(found.exported_program), cls=serialize.EnumEncoder, allow_nan=False
        )
    except Exception as error:
        raise Inexpressible(f"PyTorch cannot write the exported program: {error}") from error
    return text.encode()


def loads(data: bytes, weights: Mapping[str, torch.Tensor], infos: Mapping[str, WeightInfo]) -> ExportedProgram:
    """The program with these weights, whose memory it shares; ArtifactError where PyTorch cannot read it."""
    held, constants = {}, {}
    for name, tensor in weights.items():
        if infos[name].kind == "parameter":
            held[name] = tensor if isinstance(tensor, Parameter) else Parameter(tensor, requires_grad=False)
        else:
            (held if infos[name].persistent else constants)[name] = tensor
    try:
        found = serialize._dict_to_dataclass(schema.ExportedProgram, json.loads(data))
        # PyTorch takes the range of 2*s0 for that of a symbol, and fails over it; the signature holds all of them.
        for text in [text for text in found.range_constraints if not text.isidentifier()]:
            del found.range_constraints[text]
        return serialize.ExportedProgramDeserializer().deserialize(found, held, constants)
    except Exception as error:
        raise ArtifactError(
            f"PyTorch {torch.__version__} cannot read the exported program in the file: {error}",
            when="the first call with a new size",
            hint="import what registers the program's own operators, or save it again with this PyTorch",
        ) from error
