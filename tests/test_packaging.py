"""The distribution: what it declares is what there is, a wheel holds that and nothing else, and the links stand."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from neuron_compiler import __version__
from neuron_compiler.logs import TORCH_VERSIONS

ROOT = Path(__file__).parent.parent
LINKED = ("passes", "lowering", "eager_fallback")


def setup() -> configparser.ConfigParser:
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    return read


def lines(section: str, key: str) -> list[str]:
    return [line for line in setup()[section][key].splitlines() if line and not line.startswith("#")]


def installed_path(path: Path) -> str:
    """Where a file of the checkout lands below site-packages."""
    relative = path.relative_to(ROOT)
    return str("neuron_compiler" / relative if relative.parts[0] in LINKED else relative)


def package_files() -> set[str]:
    """Every file of the four folders, as installed."""
    return {
        installed_path(path)
        for folder in ("neuron_compiler", *LINKED)
        for path in (ROOT / folder).rglob("*")  # does not follow the links
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_declared_packages_are_the_folders_with_an_init() -> None:
    found = {str(Path(name).parent).replace("/", ".") for name in package_files() if name.endswith("/__init__.py")}
    assert set(lines("options", "packages")) == found


def test_every_folder_of_code_is_a_package() -> None:
    folders = {str(Path(name).parent) for name in package_files() if name.endswith(".py")}
    assert {f for f in folders if f"{f}/__init__.py" not in package_files()} == set()


@pytest.mark.parametrize("folder", LINKED)
def test_links_are_relative_and_committed(folder: str) -> None:
    link = ROOT / "neuron_compiler" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"
    listed = subprocess.run(
        ["git", "ls-files", "--stage", f"neuron_compiler/{folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.startswith("120000 ")


@pytest.mark.parametrize("folder", LINKED)
def test_bare_name_is_refused(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(folder, ROOT / folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"import this package as 'neuron_compiler.{folder}', not '{folder}'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of the checkout, an sdist, and a wheel made from that sdist, built without a network."""
    out = tmp_path_factory.mktemp("built")
    source = out / "source"
    # A copy: setuptools leaves build/ beside the sources, and what lies there gets into the next wheel.
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("neuron_compiler", *LINKED):
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=ignore)
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, source / name)

    def wheel(folder: Path, into: Path) -> None:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--wheel-dir", str(into), str(folder)], check=True, timeout=300)

    make_sdist = f"from setuptools.build_meta import build_sdist; build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", make_sdist], cwd=source, check=True, timeout=300, stdout=subprocess.DEVNULL)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out / "unpacked", filter="data")
    wheel(next((out / "unpacked").iterdir()), out / "from_sdist")
    wheel(source, out / "from_checkout")
    return out


@pytest.mark.parametrize("origin", ["from_checkout", "from_sdist"])
def test_wheel_holds_every_file_under_one_name(built: Path, origin: str) -> None:
    (wheel,) = (built / origin).glob("*.whl")
    assert wheel.name == f"neuron_compiler-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"neuron_compiler-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"neuron_compiler", info}
    assert {name for name in names if not name.startswith(info)} == package_files()
    assert f"{info}/licenses/LICENSE" in names
    assert "neuron_compiler/py.typed" in names


def test_sdist_holds_each_file_once(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = [Path(*Path(m.name).parts[1:]) for m in archive.getmembers() if m.isfile()]
    assert len(names) == len(set(names))
    assert [n for n in names if n.parts[:2] in {("neuron_compiler", folder) for folder in LINKED}] == []
    assert {Path("Makefile"), Path("constraints.txt"), Path("passes/__init__.py")} <= set(names)


def requirements(extras: tuple[str, ...] = ("test", "models")) -> list[Requirement]:
    found = lines("options", "install_requires")
    for extra in extras:
        found += lines("options.extras_require", extra)
    return [Requirement(line) for line in found]


def pins() -> dict[str, Version]:
    """Name to version of constraints.txt."""
    stated = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    pairs = (line.split("==") for line in stated if line)
    return {canonicalize_name(name): Version(version) for name, version in pairs}


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_constraints_pin_what_is_required(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_jax_and_jaxlib_go_together_and_are_bounded() -> None:
    bounds = {r.name: r.specifier for r in requirements()}
    assert bounds["jax"] == bounds["jaxlib"]
    assert pins()["jax"] == pins()["jaxlib"]
    assert not bounds["jax"].contains("0.11.0")


def test_log_registry_is_used_for_the_torch_that_is_allowed() -> None:
    low, high = (".".join(map(str, minor)) for minor in TORCH_VERSIONS)
    (torch,) = (r for r in requirements() if r.name == "torch")
    assert {str(s) for s in torch.specifier} == {f">={low}", f"<{high}"}


def test_make_installs_the_pinned_torch_first() -> None:
    recipe = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^\t\$\(PIP\) (.*)$", recipe, re.M)
    assert installs[0].startswith("$(TORCH)")
    assert "TORCH ?= $(shell grep '^torch==' constraints.txt)" in recipe
