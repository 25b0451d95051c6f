"""The package: what it exports, what it contains, and the tour."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

import ternmem as tern
from ternmem import _core, c

folder = pathlib.Path(__file__).resolve().parent.parent


def test_the_extension_exports_its_init_function_and_the_c_api() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    assert _core.__file__ is not None
    listed = subprocess.run([nm, "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    header = (folder.parent / "include/tern/c/tern.h").read_text()
    declared = set(re.findall(r"^TERN_C_API [^(]*?(tern_\w+)\(", header, re.M))
    of_torch = {"tern_torch_begin_pool", "tern_torch_end_pool", "tern_torch_release_pool"}
    assert len(declared) > 40
    assert exported - {"tern_fake_cuda"} == {"PyInit__core", *declared, *of_torch}
    assert declared - {"tern_torch_malloc_or_throw"} == set(c._signatures)


def test_the_license_and_the_readme_are_there() -> None:
    assert (folder / "LICENSE").read_text() == (folder.parent / "LICENSE").read_text()
    assert "pip install ./python" in (folder / "README.md").read_text()
    assert (folder / "ternmem" / "py.typed").exists()


def test_the_installed_version_is_that_of_the_library() -> None:
    try:
        installed = importlib.metadata.version("ternmem")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("ternmem is used from its build folder and is not installed")
    assert installed == tern.__version__


@pytest.mark.parametrize("spec", [[], ["host"], ["cuda:0?driver=sim"]])
def test_the_tour_runs(spec: list[str]) -> None:
    start = time.perf_counter()
    shown = subprocess.run([sys.executable, "-m", "ternmem.tour", *spec], capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    text = shown.stdout
    assert "synchronized" in text
    assert "two writers are refused:     access_conflict" in text
    assert "OutOfBudgetError, 0 B are charged" in text
    assert text.count("shares:   True") + text.count("shares:     True") == 2
    assert re.search(r"TERN-S101 missing-wait at tour\.py:\d+", text)
    assert elapsed < 10, "the tour takes a second; a loaded machine gets ten"


def test_notebooks_show_tables(device: tern.Device) -> None:
    buffer = tern.Buffer((2, 3), "float32", device)
    for text in (repr(buffer), buffer._repr_html_()):  # type: ignore[attr-defined]
        for part in ("(2, 3)", "float32", device.spec, "24"):
            assert part in text
    assert "not allocated yet" in buffer._repr_html_()  # type: ignore[attr-defined]
    unified = tern.UnifiedBuffer((2, 3), device=device).fill(1)
    html = unified._repr_html_()
    for part in ("(2, 3)", "float32", device.spec, "24 B", "host_dirty", "up to date in", "host"):
        assert part in html
    with unified.read_device() as lent:
        assert "read-only" in lent._repr_html_()  # type: ignore[attr-defined]
        assert "nbytes=24" in repr(lent)
    budget = tern.Budget("a<b", 1 << 20)
    assert "a&lt;b" in budget._repr_html_()  # type: ignore[attr-defined]
    assert "Pool" in tern.Pool(device)._repr_html_()  # type: ignore[attr-defined]
