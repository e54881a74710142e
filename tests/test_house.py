"""The rules of the house: who may import whom, what library code never does, and what each file owes the others."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from neuron_compiler.options import ENVIRONMENT

ROOT = Path(__file__).parent.parent

# A unit is a module or package directly below neuron_compiler. It may import units of earlier layers, and itself.
# The machines' records stand apart from the rest of trainium: a limit that the IR is verified against is one of them.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "logs"),
    ("options", "ledger", "trainium.target"),
    ("native", "compile_metrics"),
    ("device_library", "host_library", "order_of_equals"),
    ("ir",),
    ("dtypes",),
    ("trainium",),
    ("opdef", "kernels"),
    ("interop",),
    ("passes", "lowering"),
    ("runtime",),
    ("compile", "sequence", "buckets"),
    ("report", "progress"),
    ("dump", "artifacts"),
    ("observers",),
    ("capture", "replay"),
    ("saved",),
    ("eager_fallback",),
    ("autoload",),
    ("models",),
    ("measure",),
    ("demo",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}

# Who may import what comes from outside. A name stands for itself and all below it.
ONLY = {
    "jax": ("opdef", "interop", "lowering", "runtime", "trainium.execute"),
    "jaxlib": ("opdef", "interop", "lowering", "runtime", "trainium.execute"),
    "networkx": ("passes",),
    "torch.fx": ("capture",),
}
NEVER = {"ir": ("torch", "jax", "numpy", "networkx"), "trainium.execute": ("neuron_compiler.lowering",)}

# XLA's client takes its number of threads from a variable that is set around its creation.
ENVIRONMENT_USERS = ("options", "interop")

# What a user looks at writes to standard output; nothing else does.
PRINTS = ("cli", "commands", "demo", "report", "__main__")

MAX_LINES = 500


def module_name(path: Path) -> str:
    """Dotted name below neuron_compiler: ``passes.fuse`` for passes/fuse.py, an empty one for the package itself."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "neuron_compiler":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def library() -> list[Path]:
    """Every Python file that is installed, by its real path."""
    roots = ("neuron_compiler", "passes", "lowering", "eager_fallback")
    # Path.rglob does not follow the links inside neuron_compiler/.
    return sorted(p for root in roots for p in (ROOT / root).rglob("*.py"))


def text_files() -> list[Path]:
    """Every text file that git tracks or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [ROOT / line for line in listed]
    return [p for p in paths if p.is_file() and not p.is_symlink() and b"\0" not in p.read_bytes()[:1024]]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, inside functions too; ``from a import b`` gives a.b."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def below(name: str, top: str) -> bool:
    return name == top or name.startswith(top + ".")


def unit_of(name: str) -> str:
    """The unit that a dotted name below neuron_compiler belongs to; an empty one for the package itself."""
    return next((unit for unit in RANK if "." in unit and below(name, unit)), name.partition(".")[0])


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_library_is_found() -> None:
    assert {"ir.graph", "opdef", "passes", "lowering.ops", "eager_fallback", ""} <= set(map(module_name, library()))


def test_every_module_has_its_layer() -> None:
    units = {unit_of(module_name(p)) for p in library()} - {""}
    assert units - set(RANK) == set(), "give it a place in LAYERS"
    assert {unit for unit in RANK if "." not in unit} - units == set(), "take it out of LAYERS"


def test_layers_are_documented() -> None:
    stated = " ← ".join(", ".join(layer) for layer in LAYERS[:-1])
    assert stated in re.sub(r"\s+", " ", (ROOT / "docs" / "architecture.md").read_text())


def test_nothing_imports_upward() -> None:
    wrong = []
    for path in library():
        own = unit_of(module_name(path))
        for line, name in imports(path):
            unit = unit_of(name.partition(".")[2])
            if not below(name, "neuron_compiler") or own == "" or unit.startswith("__"):  # __version__, __file__
                continue
            if unit not in RANK:  # from neuron_compiler import Options: the package's own lazy names
                wrong.append(f"{place(path, line)} imports {name}: import it from the module that defines it")
            elif unit != own and RANK[unit] >= RANK[own]:
                wrong.append(f"{place(path, line)} {own} imports {unit}")
    assert wrong == []


def test_outside_packages_stay_where_they_belong() -> None:
    wrong = []
    for path in library():
        own = module_name(path)
        for line, name in imports(path):
            wrong += [
                f"{place(path, line)} imports {name}, which belongs to {', '.join(owners)}"
                for package, owners in ONLY.items()
                if below(name, package) and not any(below(own, owner) for owner in owners)
            ]
            wrong += [
                f"{place(path, line)} {unit} never imports {package}"
                for unit, packages in NEVER.items()
                for package in packages
                if below(own, unit) and below(name, package)
            ]
    assert wrong == []


def test_imports_are_absolute() -> None:
    wrong = [
        place(path, node.lineno)
        for path in library()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    assert wrong == []


def test_no_output_no_debugger_no_assert() -> None:
    wrong = []
    for path in library():
        prints = module_name(path).split(".")[0] in PRINTS
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Assert):
                wrong.append(f"{place(path, node.lineno)} assert: raise an error that says what to try")
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called == "breakpoint" or (called == "print" and not prints):
                wrong.append(f"{place(path, node.lineno)} {called}()")
        wrong += [f"{place(path, line)} imports {name}" for line, name in imports(path) if below(name, "pdb")]
    assert wrong == []


def test_no_exception_is_swallowed() -> None:
    wrong = [
        place(path, handler.lineno)
        for path in library()
        for handler in ast.walk(tree(path))
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id == "Exception"))
        and all(isinstance(statement, ast.Pass) for statement in handler.body)
    ]
    assert wrong == []


def test_only_options_reads_the_environment() -> None:
    wrong = [
        place(path, node.lineno)
        for path in library()
        if module_name(path) not in ENVIRONMENT_USERS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert wrong == []


def test_every_module_says_what_it_is() -> None:
    silent = [str(p.relative_to(ROOT)) for p in library() if p.name != "__init__.py" and not ast.get_docstring(tree(p))]
    assert silent == []


def test_no_file_is_too_long() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in text_files() if p.suffix == ".py"}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


def passes() -> list[Path]:
    """Files of passes/ that hold a pass: a class with ``__call__``."""
    return [
        path
        for path in (ROOT / "passes").glob("*.py")
        if any(
            isinstance(part, ast.FunctionDef) and part.name == "__call__"
            for node in tree(path).body
            if isinstance(node, ast.ClassDef)
            for part in node.body
        )
        and path.stem != "base"
    ]


@pytest.mark.parametrize("path", passes(), ids=lambda path: path.stem)
def test_a_pass_has_a_test_and_a_place(path: Path) -> None:
    assert (ROOT / "tests" / "passes" / f"test_{path.stem}.py").is_file()
    assert f"neuron_compiler.passes.{path.stem}" in {
        name.rsplit(".", 1)[0] for _, name in imports(ROOT / "passes" / "pipeline.py")
    }
    assert (ast.get_docstring(tree(path)) or "").count("\n") >= 3, "what it changes, why it pays, before/after, assumes"


def test_no_two_test_files_share_a_name() -> None:
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("variable", sorted(ENVIRONMENT))
def test_environment_variable_is_documented(variable: str) -> None:
    rows = [line for line in (ROOT / "docs" / "debugging.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`{variable}" in row and f"`{ENVIRONMENT[variable]}`" in row for row in rows)


# Written in two halves, so that this file does not contain what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers|tmp/d" r"ev)(/|\b)")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")


@pytest.mark.parametrize("pattern", [MACHINE_PATH, UNFINISHED], ids=["machine path", "unfinished"])
def test_no_file_holds(pattern: re.Pattern[str]) -> None:
    wrong = [
        f"{place(path, number)} {line.strip()}"
        for path in text_files()
        if path.name != "LICENSE"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert wrong == []
