"""Each call of the device may be the first that a process makes: no other has to prepare it.

One process registers the device, uses nothing of it, and forks a child for each call.
"""

from __future__ import annotations

import ast
import inspect
import json

import pytest
import torch
from in_fresh_process import on_device

OF_MODULE = (
    "torch.neuron.init() is None",
    "torch.neuron.is_initialized()",
    "torch.neuron.is_available()",
    "torch.neuron.device_count() == 2",
    "torch.neuron.current_device() == 0",
    "torch.neuron.set_device(1) is None and torch.ones(1, device='neuron').device.index == 1",
    "within(torch.neuron.device(1), lambda: torch.ones(1, device='neuron').device.index == 1)",
    "within(torch.neuron.device_of(torch.ones(1)), lambda: torch.neuron.current_device() == 0)",
    "torch.neuron.get_device_properties(1).total_memory > 0",
    "torch.neuron.DeviceProperties('trn2', 1).total_memory == 1",
    "torch.neuron.get_device_name() == 'neuron:0'",
    "torch.neuron.Stream().query()",
    "torch.neuron.Stream(device=1, priority=-1).device.index == 1",
    "torch.neuron.Event().query()",
    "torch.neuron.Event(enable_timing=True).record() is None",
    "torch.neuron.synchronize() is None",
    "torch.neuron.synchronize('neuron:1') is None",
    "torch.neuron.current_stream().query()",
    "torch.neuron.default_stream(1).device.index == 1",
    "torch.neuron.set_stream(torch.neuron.Stream()) is None",
    "within(torch.neuron.stream(torch.neuron.Stream()), lambda: torch.neuron.current_stream().stream_id > 0)",
    "torch.neuron.wait_stream(torch.neuron.Stream()) is None",
    "torch.neuron.wait_event(torch.neuron.Event()) is None",
    "torch.neuron.record_event().query()",
    "torch.neuron.query()",
    "torch.neuron.manual_seed(1) is None and torch.initial_seed() == 1",
    "torch.neuron.manual_seed_all(1) is None",
    "torch.neuron.seed() != 0",
    "torch.neuron.seed_all() is None",
    "torch.neuron.initial_seed() == torch.initial_seed()",
    "torch.neuron.get_rng_state().numel() > 0",
    "len(torch.neuron.get_rng_state_all()) == 2",
    "torch.neuron.set_rng_state(torch.get_rng_state()) is None",
    "torch.neuron.set_rng_state_all([torch.get_rng_state()] * 2) is None",
    "torch.neuron.memory_stats()['num_ooms'] == 0",
    "torch.neuron.memory_allocated() == 0",
    "torch.neuron.max_memory_allocated(1) == 0",
    "torch.neuron.memory_reserved() == 0",
    "torch.neuron.max_memory_reserved() == 0",
    "torch.neuron.memory_summary() != ''",
    "torch.neuron.reset_peak_memory_stats() is None",
    "torch.neuron.reset_max_memory_allocated() is None",
    "torch.neuron.reset_accumulated_memory_stats() is None",
    "torch.neuron.mem_get_info()[0] == torch.neuron.mem_get_info()[1]",
    "torch.neuron.set_per_process_memory_fraction(0.5) is None",
    "torch.neuron.empty_cache() is None",
    "torch.neuron.get_dynamo_metrics() == []",
    "torch.neuron.reset_dynamo_metrics() is None",
    "torch.neuron.get_amp_supported_dtype() != []",
    "torch.neuron.is_bf16_supported()",
    "torch.neuron.ledger().rows == ()",
    "torch.neuron.get_fallback_mode() == 'warn'",
    "torch.neuron.set_fallback_mode('error') is None",
    "not torch.neuron.get_fallback_ops()",
    "not torch.neuron.get_executed_ops()",
    "torch.neuron.clear_op_tracking() is None",
    "torch.neuron.set_op_tracking(True) is None and torch.ones(1, device='neuron').add(1).item() == 2",
    "within(torch.neuron.track_ops(), lambda: torch.ones(1, device='neuron').add(1).item() == 2)",
    "torch.neuron.get_eager_mode() == 'each'",
    "torch.neuron.set_eager_mode('each') is None",
)

OF_ACCELERATOR = (
    "torch.accelerator.is_available()",
    "torch.accelerator.device_count() == 2",
    "torch.accelerator.current_accelerator().type == 'neuron'",
    "torch.accelerator.current_device_index() == 0",
    "torch.accelerator.current_device_idx() == 0",
    "torch.accelerator.set_device_index(1) is None and torch.neuron.current_device() == 1",
    "torch.accelerator.set_device_idx(1) is None",
    "within(torch.accelerator.device_index(1), lambda: torch.neuron.current_device() == 1)",
    "torch.accelerator.current_stream().query()",
    "torch.accelerator.set_stream(torch.Stream('neuron')) is None",
    "torch.accelerator.synchronize() is None",
    "torch.accelerator.get_memory_info()[1] > 0",
    "torch.accelerator.memory_stats()['num_ooms'] == 0",
    "torch.accelerator.memory_allocated() == 0",
    "torch.accelerator.max_memory_allocated() == 0",
    "torch.accelerator.memory_reserved() == 0",
    "torch.accelerator.max_memory_reserved() == 0",
    "torch.accelerator.reset_accumulated_memory_stats() is None",
    "torch.accelerator.reset_peak_memory_stats() is None",
    "torch.accelerator.empty_cache() is None",
    "torch.accelerator.empty_host_cache() is None",
    "torch.bfloat16 in torch.accelerator.get_device_capability()['supported_dtypes']",
)
LEFT_OUT = {"Graph"}
"""Of torch.accelerator: recordings of graphs, which the device does not have."""

OF_TORCH = (
    "torch.Generator('neuron').manual_seed(3).initial_seed() == 3",
    "torch.Generator('neuron:1').device.index == 1",
    "torch.Stream('neuron').query()",
    "torch.Event('neuron').query()",
    "torch.UntypedStorage(4, device='neuron').nbytes() == 4",
    "torch.UntypedStorage(4).neuron().device.type == 'neuron'",
    "torch.tensor([1.0]).untyped_storage().is_neuron is False",
    "within(torch.autocast('neuron'), lambda: torch.is_autocast_enabled('neuron'))",
    "within(torch.autocast('neuron', dtype=torch.float16), lambda: (M().neuron() @ M().neuron()).dtype == torch.half)",
    "torch.amp.GradScaler('neuron').get_scale() > 1",
    "torch.ones(2).pin_memory().is_pinned()",
    "torch.empty(2, pin_memory=True).is_pinned()",
    "torch.empty(0, device='neuron').is_neuron",
    "torch.empty_strided((2, 2), (1, 2), device='neuron').stride() == (1, 2)",
    "torch.tensor(3, device='neuron').item() == 3",
    "torch.full((2,), 3, device='neuron').sum().item() == 6",
    "torch.ones_like(torch.empty(2), device='neuron').device.type == 'neuron'",
    "torch.rand(2, device='neuron').numel() == 2",
    "torch.arange(3, device='neuron:1').tolist() == [0, 1, 2]",
    "torch.as_tensor([1], device='neuron').tolist() == [1]",
    "torch.asarray([1], device='neuron').tolist() == [1]",
    "torch.from_numpy(__import__('numpy').ones(2)).to('neuron').sum().item() == 2",
    "torch.tensor([1.0]).neuron().item() == 1",
    "torch.tensor([1.0]).to('neuron', torch.float16).dtype == torch.float16",
    "torch.tensor([1.0]).to(torch.device('neuron')).cpu().tolist() == [1]",
    "torch.tensor([1.0]).is_neuron is False",
    "torch.nn.Linear(2, 2).neuron().weight.is_neuron",
    "torch.nn.Linear(2, 2).to('neuron')(M().neuron()).sum().backward() is None",
    "torch.nn.Linear(2, 2, device='neuron').weight.is_neuron",
    "torch.nn.utils.rnn.pack_sequence([torch.ones(2)]).to('neuron').data.is_neuron",
    "torch.load(saved(), map_location='neuron').tolist() == [1, 2]",
    "torch.load(saved(), map_location={'cpu': 'neuron:1'}).device.index == 1",
    "within(torch.device('neuron'), lambda: torch.ones(1).is_neuron)",
    "torch.set_default_device('neuron') is None and torch.ones(1).is_neuron",
    "torch.get_device_module('neuron') is torch.neuron",
    "torch.device('neuron').type == 'neuron'",
    "within(torch.random.fork_rng(device_type='neuron'), lambda: torch.rand(1, device='neuron').numel() == 1)",
    "torch.manual_seed(1).initial_seed() == 1",
    "torch.seed() != 0",
    "next(iter(loader(pin_memory=True)))[0].is_pinned()",
    "next(iter(loader(pin_memory=True, num_workers=1)))[0].neuron().tolist() == [0, 1]",
    "repr(torch.ones(1, device='neuron')) == \"tensor([1.], device='neuron:0')\"",
    "torch.ops.neuron_compiler.from_cpu(torch.ones(1), 0).is_neuron",
    "torch.ops.neuron_compiler.as_cpu(torch.ones(1)).is_cpu",
)

COMPILING = (
    "torch.nn.Linear(2, 2, device='meta').to_empty(device='neuron').weight.is_neuron",
    "torch.utils.checkpoint.checkpoint(torch.sin, leaf(), use_reentrant=True).sum().backward() is None",
    "torch.func.grad(torch.sum)(M().neuron()).is_neuron",
    "profiled(lambda: torch.ones(1, device='neuron')) > 0",
    "torch.neuron.set_eager_mode('fused') is None and torch.ones(1, device='neuron').add(1).item() == 2",
    "within(torch.neuron.eager_mode('fused'), lambda: torch.ones(1, device='neuron').add(1).item() == 2)",
    "compiled('neuron')(torch.ones(1, device='neuron')).item() == 2",
    "compiled('inductor')(torch.ones(1, device='neuron')).item() == 2",
    "torch.export.export(torch.nn.Linear(2, 2).neuron(), (M().neuron(),)).module()(M().neuron()).is_neuron",
)
"""Those that import Dynamo or the compiler, which happens once for all of them."""

CALLS = (*OF_MODULE, *OF_ACCELERATOR, *OF_TORCH, *COMPILING)

CODE = """
import io, json, os, signal, sys
import torch.utils.checkpoint
from torch.utils.data import DataLoader, TensorDataset

def within(context, call):
    with context:
        return call()

def saved():
    file = io.BytesIO()
    torch.save(torch.tensor([1, 2]), file)
    file.seek(0)
    return file

def M():
    return torch.ones(2, 2)

def leaf():
    return torch.ones(2, device="neuron", requires_grad=True)

def loader(**options):
    return DataLoader(TensorDataset(torch.arange(2)), batch_size=2, **options)

def profiled(call):
    with torch.profiler.profile() as found:
        call()
    return len(found.key_averages())

def compiled(backend):
    return torch.compile(lambda x: x + 1, backend=backend)

for number, call in enumerate(CALLS):
    if number == len(CALLS) - COMPILING:
        import neuron_compiler.capture.backend, torch._inductor.compile_fx, torch.export
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        try:
            good = eval(call)
        except BaseException as error:
            good = f"{type(error).__name__}: {error}"
        os.write(writing, repr(good).encode()[:4000])
        os._exit(0)
    os.close(writing)
    said = os.fdopen(reading).read()
    print(json.dumps([call, said, os.waitpid(child, 0)[1]]))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[str, int]]:
    """What each call gave as the first of its process, and how the process ended."""
    lines = on_device(f"CALLS = {CALLS!r}\nCOMPILING = {len(COMPILING)}\n{CODE}", NEURON_RT_NUM_CORES="2")
    found = [json.loads(line) for line in lines if line.startswith("[")]
    return {call: (said, status) for call, said, status in found}


@pytest.mark.parametrize("call", CALLS)
def test_as_the_first_call(results: dict[str, tuple[str, int]], call: str) -> None:
    assert results[call] == ("True", 0)


def names_called(calls: tuple[str, ...], module: str) -> set[str]:
    """What the calls take from torch.neuron or torch.accelerator."""
    nodes = [node for call in calls for node in ast.walk(ast.parse(call))]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == module}


def test_no_function_of_torch_neuron_is_left_out() -> None:
    public = {
        name
        for name, value in vars(torch.neuron).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith("neuron_compiler.eager_fallback")
    }
    assert len(public) > 50
    assert public - names_called(CALLS, "torch.neuron") == set()


def test_no_function_of_torch_accelerator_is_left_out() -> None:
    assert set(torch.accelerator.__all__) - LEFT_OUT - names_called(CALLS, "torch.accelerator") == set()
