"""The dump folder: what stands in it, that it is whole, shared by nobody, and of use when a compile fails."""

import errno
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import neuron_compiler
from neuron_compiler.capture import neuron
from neuron_compiler.compile import compile_graph
from neuron_compiler.dump import folder as folder_module
from neuron_compiler.dump.folder import Folder, roots
from neuron_compiler.errors import DumpError, LoweringError, PassError, VerifyError
from neuron_compiler.ir import kernel_text, text
from neuron_compiler.ir.graph import Value
from neuron_compiler.observers import observers_for
from neuron_compiler.options import Options
from neuron_compiler.passes import pipeline
from neuron_compiler.passes.cse import Cse
from neuron_compiler.passes.dce import Dce
from neuron_compiler.runtime import Layout

ROOT = Path(neuron_compiler.__file__).parent.parent

GRAPH = """
graph small(%x: f32[2,3]) {
  %a = aten.mul.Tensor(%x, 2.0) : f32[2,3]  # model.py:1
  %b = aten.mul.Tensor(%x, 2.0) : f32[2,3]  # model.py:2
  %c = aten.add.Tensor(%a, %b) : f32[2,3]  # model.py:3
  return %c
}
"""
LAYOUT = Layout.of((2, 3), (1, 2))


@pytest.fixture(autouse=True)
def first_dump_of_the_process(monkeypatch):
    monkeypatch.setattr(folder_module, "_next_number", {})


def compile_small(dump, source=GRAPH, **options):
    """Compile with the dump of a captured graph, without Dynamo; returns the compilation."""
    chosen = Options(dump=str(dump), verify="every", **options)
    graph = text.parse(source).graph
    return compile_graph(graph, [LAYOUT], [LAYOUT], chosen, observers_for(chosen, "small"))


def names(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


# --- what is written ----------------------------------------------------------------------------------------------


def test_the_kernels_of_the_groups(tmp_path):
    compile_small(tmp_path)
    *kernels, last = re.split(r"^(?=kernel |# )", (tmp_path / "0000_small" / "kernels.txt").read_text(), flags=re.M)[1:]
    assert [kernel_text.parse(kernel).target for kernel in kernels] == ["trn2"] * len(kernels)
    assert last == f"# {len(kernels)} of {len(kernels)} groups have a kernel for trn2\n"
    assert kernels


def test_files_of_one_executable(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "DEFAULT", (Dce(), Cse(), Dce()))
    done = compile_small(tmp_path)
    dumped = tmp_path / "0000_small"
    assert names(dumped) == [
        "02_input.ir", "04_cse.ir", "hlo_map.txt", "kernels.txt", "repro.py", "stablehlo.mlir", "summary.txt",
        "timings.tsv", "xla_optimised.txt",
    ]  # fmt: skip
    assert text.parse((dumped / "02_input.ir").read_text()) == done.captured
    assert text.parse((dumped / "04_cse.ir").read_text()) == done.program
    assert ["cse", "changed", "3", "2", "0"] in [line.split() for line in (dumped / "summary.txt").open()]
    assert "stablehlo.multiply" in (dumped / "stablehlo.mlir").read_text()
    assert "HloModule jit_small" in (dumped / "xla_optimised.txt").read_text()
    assert re.search(r" a +aten\.mul\.Tensor +model\.py:1$", (dumped / "hlo_map.txt").read_text(), re.M)
    assert (dumped / "kernels.txt").read_text() == "# 0 of 0 groups have a kernel for trn2\n"
    assert [line.split("\t")[1] for line in (dumped / "timings.tsv").read_text().splitlines()] == [
        "name", "dce", "cse", "dce", "passes", "lower", "xla",
    ]  # fmt: skip


@torch.library.custom_op("neuron_dump_test::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


opaque.register_fake(torch.empty_like)


def test_a_graph_that_is_split_has_a_folder_a_segment(tmp_path):
    def function(x, y):
        return opaque(x * 2) * opaque(y)

    x = torch.ones(2, 2)
    compiled = torch.compile(function, backend=neuron, options={"dump": str(tmp_path)})
    assert torch.equal(compiled(x, x), function(x, x))
    (dumped,) = tmp_path.iterdir()
    assert re.fullmatch(r"0000_graph\d+_inference", dumped.name)
    found = names(dumped)
    assert {"00_dynamo.py", "01_aot.py", "02_input.ir", "fallbacks.txt", "segment1/02_input.ir"} <= set(found)
    assert {"segment1/repro.py", "segment1/summary.txt", "segment1/xla_optimised.txt"} <= set(found)
    assert "segment1/01_aot.py" not in found
    assert "x * 2" in (dumped / "00_dynamo.py").read_text()
    assert "torch.ops.aten.mul.Tensor" in (dumped / "01_aot.py").read_text()
    lines = (dumped / "fallbacks.txt").read_text().splitlines()
    assert lines[0].endswith(": 2 ops eager, 0 random draws in each call")
    line = function.__code__.co_firstlineno + 1
    assert lines[4].split() == ["2", "neuron_dump_test.opaque.default", "no", "lowering", "rule", f"{__file__}:{line}"]


def test_forward_backward_and_each_size_have_their_own_folder(tmp_path):
    def function(x):
        return x * x * 3

    compiled = torch.compile(function, backend=neuron, dynamic=True, options={"dump": str(tmp_path)})
    for size in (3, 4):
        x = torch.ones(size, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((size,), 6.0))
    found = sorted(p.name for p in tmp_path.iterdir())
    assert [re.sub(r"graph\d+", "graph", name) for name in found] == [
        "0000_graph_forward_3", "0001_graph_backward_3", "0002_graph_forward_4", "0003_graph_backward_4",
    ]  # fmt: skip


def test_a_strict_compile_that_is_refused_lists_what_would_run_eagerly(tmp_path):
    options = {"dump": str(tmp_path), "strict": True}
    with pytest.raises(Exception, match="cannot be compiled: no lowering rule"):
        torch.compile(lambda x: opaque(x), backend=neuron, options=options)(torch.ones(2))
    (listed,) = tmp_path.rglob("fallbacks.txt")
    assert "neuron_dump_test.opaque.default" in listed.read_text()


def test_nothing_is_dumped_or_printed_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch._logging._internal.trace_log, "handlers", [])  # as without TORCH_TRACE

    def unwanted(*args, **kwargs):
        raise AssertionError("a graph was printed and nobody reads it")

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", unwanted)
    monkeypatch.setattr("neuron_compiler.ir.text.format", unwanted)
    monkeypatch.setattr("neuron_compiler.interop.optimised_hlo", unwanted)
    torch.compile(lambda x: x * 2, backend=neuron)(torch.ones(2))
    assert list(tmp_path.iterdir()) == []


# --- where --------------------------------------------------------------------------------------------------------


def test_roots(monkeypatch, tmp_path):
    assert roots(Options()) == ()
    assert roots(Options(dump="d")) == (Path("d"),)
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    monkeypatch.setattr(torch._dynamo.config, "debug_dir_root", str(tmp_path))
    given, torchs = roots(Options(dump="d"))
    assert given == Path("d")
    assert torchs.name == "neuron"
    assert torchs.parent.parent == tmp_path
    assert torchs.parent.name.startswith("run_")


def test_numbers_go_on_after_folders_that_exist(tmp_path):
    assert Folder.numbered(tmp_path, "a").path.name == "0000_a"
    (tmp_path / "0001_somebody_elses").mkdir()
    assert Folder.numbered(tmp_path, "b").path.name == "0002_b"
    assert Folder.numbered(tmp_path / "other", "c").path.name == "0000_c"
    assert Folder.numbered(tmp_path / "." / "other", "c").path.name == "0001_c"


def test_a_name_becomes_one_that_file_systems_take(tmp_path):
    assert Folder.numbered(tmp_path, "a/b:c").path.name == "0000_a_b_c"
    assert len(Folder.numbered(tmp_path, "x" * 300).path.name) == 105


def test_a_folder_made_by_another_process_meanwhile_is_left_to_it(tmp_path, monkeypatch):
    (tmp_path / "0000_graph").mkdir()
    monkeypatch.setattr(os, "listdir", lambda path: [])  # the other was not there yet when this one looked
    assert Folder.numbered(tmp_path, "graph").path.name == "0001_graph"


def test_processes_never_share_a_folder(tmp_path):
    workers = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(25):
                    Folder.numbered(tmp_path, "graph").write("mine", str(worker))
                os._exit(0)
            except BaseException:
                os._exit(1)
        workers.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in workers] == [0] * 4
    written = [p.read_text() for p in tmp_path.glob("*/mine")]
    assert sorted(written) == ["0"] * 25 + ["1"] * 25 + ["2"] * 25 + ["3"] * 25


# --- when it cannot be written ------------------------------------------------------------------------------------


def test_a_root_that_is_a_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError) as raised:
        compile_small(tmp_path / "file")
    assert str(raised.value) == (
        f"cannot write to the dump folder {tmp_path}/file: File exists\n"
        "  in: dump\n"
        "  try: choose another folder with NEURON_COMPILER_DUMP or options={'dump': ...}, or leave it out"
    )


def test_torch_compile_passes_the_error_on(tmp_path):
    (tmp_path / "file").write_text("")
    compiled = torch.compile(lambda x: x * 2, backend=neuron, options={"dump": f"{tmp_path}/file/below"})
    with pytest.raises(Exception, match="cannot write to the dump folder .*/file/below: Not a directory"):
        compiled(torch.ones(2))


def test_a_disk_that_fills_up_leaves_no_half_file(tmp_path):
    dumped = Folder.numbered(tmp_path, "graph")
    dumped.write("before", "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # a write beyond it fails, as on a full disk
    try:
        with pytest.raises(DumpError, match=f"folder {dumped.path}: File too large"):
            dumped.write("after", "x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(dumped.path) == ["before"]


def test_a_full_disk_in_the_middle_of_a_compile_ends_it(tmp_path, monkeypatch):
    write = Folder.write

    def full(self, name, text):
        if name.startswith("stablehlo"):
            raise folder_module._unwritable(self.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return write(self, name, text)

    monkeypatch.setattr(Folder, "write", full)
    with pytest.raises(DumpError, match="0000_small: No space left on device"):
        compile_small(tmp_path)


def test_a_file_is_replaced_and_odd_names_are_shown(tmp_path):
    dumped = Folder.numbered(tmp_path, "graph")
    dumped.write("file", "first")
    assert dumped.write("file", "name \udcff\n").read_bytes() == b"name \\udcff\n"
    assert names(dumped.path) == ["file"]


# --- when the compile fails ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """Makes the last op read a value that does not exist."""

    by: str = "nothing"
    name: str = "broken"

    def __call__(self, program):
        *first, last = program.graph.ops
        wrong = type(last)(last.result, last.kind, (Value(self.by), last.operands[1]), last.type, (), last.loc)
        return program.with_graph(type(program.graph)(
            program.graph.name, program.graph.inputs, (*first, wrong), program.graph.outputs,
        ))  # fmt: skip


@dataclass(frozen=True)
class Raises:
    name: str = "raises"

    def __call__(self, program):
        raise RuntimeError("out of ideas")


@pytest.mark.parametrize("level", ["every", "stage"])
def test_an_illegal_program_is_kept_and_can_be_tried_again(tmp_path, monkeypatch, level):
    monkeypatch.setattr(pipeline, "DEFAULT", (Cse(), Dce(), Broken(by="gone")))
    chosen = Options(dump=str(tmp_path), verify=level)
    with pytest.raises(VerifyError) as raised:
        compile_graph(text.parse(GRAPH).graph, [LAYOUT], [LAYOUT], chosen, observers_for(chosen, "small"))
    dumped = tmp_path / "0000_small"
    assert str(raised.value).startswith("%gone is used and never defined\n  op: %c = aten.add.Tensor(%gone, %a)")
    # Dce changed nothing, so the last file that was written is that of cse.
    command = f"  try: neuron-compiler opt {dumped}/03_cse.ir -p 'broken{{by=gone}}'"
    assert str(raised.value).splitlines()[-1] == command
    assert names(dumped) == ["02_input.ir", "03_cse.ir", "05_broken.BROKEN.ir", "error.txt", "repro.py"]
    assert "aten.add.Tensor(%gone, %a)" in (dumped / "05_broken.BROKEN.ir").read_text()
    error = (dumped / "error.txt").read_text()
    assert "the program before pass 2" in error
    assert command in error


def test_a_captured_program_that_is_illegal_is_kept(tmp_path):
    with pytest.raises(VerifyError) as raised:
        compile_small(tmp_path, GRAPH.replace("return %c", "return %gone"))
    assert "opt" not in str(raised.value)
    assert names(tmp_path / "0000_small") == ["02_input.BROKEN.ir", "error.txt", "repro.py"]


def test_a_pass_that_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "DEFAULT", (Cse(), Raises()))
    with pytest.raises(PassError) as raised:
        compile_small(tmp_path)
    assert str(raised.value).splitlines()[-1] == f"  try: neuron-compiler opt {tmp_path}/0000_small/03_cse.ir -p raises"
    assert names(tmp_path / "0000_small") == ["02_input.ir", "03_cse.ir", "error.txt", "repro.py"]
    monkeypatch.setattr(pipeline, "DEFAULT", (Raises(),))
    with pytest.raises(PassError, match=rf"(?m)opt {tmp_path}/0001_small/02_input\.ir -p raises$"):
        compile_small(tmp_path)


def test_without_a_dump_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(pipeline, "DEFAULT", (Broken(),))
    with pytest.raises(Exception, match="  try: NEURON_COMPILER_DUMP=folder writes the program before and after"):
        torch.compile(lambda x: x * 2 + 1, backend=neuron)(torch.ones(2))


def test_the_text_given_to_xla_is_there_when_xla_fails(tmp_path, monkeypatch):
    def refuse(bytecode):
        raise RuntimeError("UNIMPLEMENTED")

    monkeypatch.setattr("neuron_compiler.compile.compile_interruptibly", refuse)
    with pytest.raises(LoweringError, match="XLA could not compile small: UNIMPLEMENTED"):
        compile_small(tmp_path)
    assert "stablehlo.multiply" in (tmp_path / "0000_small" / "stablehlo.mlir").read_text()
    assert "UNIMPLEMENTED" in (tmp_path / "0000_small" / "error.txt").read_text()


# --- repro.py -----------------------------------------------------------------------------------------------------


def test_repro_runs_by_itself(tmp_path):
    compile_small(tmp_path, emulation="off", target="trn1")
    script = tmp_path / "0000_small" / "repro.py"
    assert "'x': (1, 2),  # f32[2,3]\n" in script.read_text()
    assert "OPTIONS = {'target': 'trn1', 'verify': 'every'}\n" in script.read_text()
    command = [sys.executable, str(script), "--values"]
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "small: compiled against ATen op by op"
    assert [line.split()[0] for line in lines[3:-1]] == ["a", "b", "c"]
    assert lines[-1] == "agrees"
