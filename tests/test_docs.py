"""The documents keep up with the code: quoted code stands where they say, links lead somewhere, lists are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuron_compiler.errors import NeuronCompilerError
from neuron_compiler.logs import ALIAS, ARTIFACTS

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

QUOTED = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#([\w-]+))?\)")
IN_CODE = re.compile(r"`([\w./-]+/[\w.-]*|[\w/]+\.(?:py|md|cfg|toml))`")


def quotations() -> list[tuple[str, str, str]]:
    return [(d.name, path, code) for d in DOCUMENTS for path, code in QUOTED.findall(d.read_text())]


@pytest.mark.parametrize(("document", "path", "code"), quotations())
def test_quoted_code_stands_in_its_file(document: str, path: str, code: str) -> None:
    assert code.strip("\n") in (ROOT / path).read_text(), f"{document} quotes {path}"


def test_there_are_quotations() -> None:
    assert {path for _, path, _ in quotations()} >= {"passes/dce.py", "passes/pipeline.py"}


def anchors(text: str) -> set[str]:
    """GitHub's anchors of the headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target, anchor in LINK.findall(text):
        if target.startswith(("http://", "https://")):
            continue
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{document.name} links to {target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    """Paths from the root, or below neuron_compiler/; names of a dump's or of a user's files have no folder."""
    known = {"passes", "lowering", "eager_fallback", "neuron_compiler", "tests", "docs", "benchmarks", "ir", "trainium"}
    for name in IN_CODE.findall(document.read_text()):
        if name.split("/")[0] not in known:
            continue
        assert (ROOT / name).exists() or (ROOT / "neuron_compiler" / name).exists(), f"{document.name} names {name}"


def table_of(document: str, heading: str) -> str:
    text = (ROOT / "docs" / document).read_text()
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_error_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", table_of("debugging.md", "Common errors")))
    kinds = {kind.__name__ for kind in NeuronCompilerError.__subclasses__()}
    assert kinds - explained == set()


@pytest.mark.parametrize("name", [ALIAS, *ARTIFACTS])
def test_every_log_name_is_explained(name: str) -> None:
    assert f"| `TORCH_LOGS={name}` |" in (ROOT / "docs" / "debugging.md").read_text()
