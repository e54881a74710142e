"""The order and the budgets that conftest.py gives the tests, seen on a small tree of tests with that same file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"

FAST = """
import pytest

@pytest.mark.parametrize("n", range(20))
def test_{name}(n):
    pass
"""

SLOW = """
import time
import pytest

@pytest.mark.parametrize("n", range(20))
def test_{name}(n):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/ with two units, one folder that nobody listed, and the two big ones."""
    tests = tmp_path_factory.mktemp("tree") / "tests"
    folders = ("end_to_end", "suites", "other", "passes", "neuron_compiler")
    for folder in folders:
        (tests / folder).mkdir(parents=True)
        body = SLOW if folder == "suites" else FAST
        (tests / folder / f"test_{folder}.py").write_text(body.replace("{name}", folder))
    (tests / "test_root.py").write_text(FAST.replace("{name}", "root"))
    shutil.copy(CONFTEST, tests)
    return tests


def run(tests: Path, budget: str) -> tuple[list[tuple[str, int]], str]:
    """(folder, number) of each test that ran, in order, and the whole output."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-ra",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tests.parent),
            str(tests),
        ],
        env={**os.environ, "NEURON_TEST_BUDGET": budget, "NEURON_TEST_SEED": "7"},
        cwd=tests.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [(name, int(n)) for name, n in re.findall(r"::test_(\w+)\[(\d+)\] PASSED", done.stdout)], done.stdout


def test_without_budget_everything_runs_in_order(tree: Path) -> None:
    ran, output = run(tree, "")
    folders = ("root", "neuron_compiler", "passes", "other", "suites", "end_to_end")
    assert ran == [(folder, n) for folder in folders for n in range(20)]
    assert "budget: none, every test runs" in output


def test_with_budget_a_fair_sample_runs(tree: Path) -> None:
    ran, output = run(tree, "suites=0.3,end_to_end/test_end_to_end.py=60")
    suites = [n for folder, n in ran if folder == "suites"]
    whole = [n for folder, n in ran if folder == "end_to_end"]
    assert 1 <= len(suites) < 20
    assert suites != sorted(suites) or len(suites) == 1
    # What the seed decides, and nothing else does: another run on another machine takes the same ones first.
    node = "7 tests/end_to_end/test_end_to_end.py::test_end_to_end[{}]"
    assert whole == sorted(range(20), key=lambda n: hashlib.sha1(node.format(n).encode()).hexdigest())
    assert [(f, n) for f, n in ran if f in ("root", "passes")] == [
        (f, n) for f in ("root", "passes") for n in range(20)
    ]
    assert re.search(rf"SKIPPED \[{20 - len(suites)}\] .*over the budget of 0.3 s for tests/suites", output)
    assert "budget: tests/suites 0.3 s, tests/end_to_end/test_end_to_end.py 60 s; sampled by seed 7" in output
