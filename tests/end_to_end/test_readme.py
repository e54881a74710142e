"""The README's example prints and writes what the README shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example was run; its output is in ``out``."""
    folder = tmp_path_factory.mktemp("example")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "first.py")], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (folder / "out").write_text(done.stdout)
    return folder


def test_output_is_the_one_shown(folder: Path) -> None:
    assert f"```text\n{(folder / 'out').read_text()}```" in (ROOT / "README.md").read_text()


def test_summary_is_the_one_shown(folder: Path) -> None:
    summary = (folder / "dumps" / "0000_graph0_inference" / "summary.txt").read_text()
    shown = summary[summary.index("Groups\n") : summary.index("\nNotes")]
    assert f"```text\n{shown.rstrip()}\n```" in (ROOT / "README.md").read_text()


def test_line_of_the_model_is_in_the_ir(folder: Path) -> None:
    line = next(
        number
        for number, text in enumerate((ROOT / "examples" / "first.py").read_text().splitlines(), 1)
        if "gelu" in text
    )
    assert f"first.py:{line}" in (ROOT / "README.md").read_text()
    fused = (folder / "dumps" / "0000_graph0_inference" / "07_fuse.ir").read_text()
    assert [line_ for line_ in fused.splitlines() if "aten.gelu" in line_ and line_.endswith(f"first.py:{line}")]
