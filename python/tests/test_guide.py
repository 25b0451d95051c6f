"""The programs of the guide and the examples run."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import ternmem as tern

root = pathlib.Path(__file__).resolve().parent.parent.parent
block = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.M)
guide = root / "docs/guide"
pages = [*sorted(guide.glob("python-*.md")), guide / "scale.md", root / "python/README.md"]
examples = sorted((root / "python/examples").glob("*.py"))


def skip_without_libraries(program: str) -> None:
    users = {"pyarrow": "import pyarrow|ternmem.flight", "distributed": "ternmem.dask", "torch": "ternmem.torch", "cupy": "ternmem.cupy",
             "numba.cuda": "ternmem.numba"}
    for library, pattern in users.items():
        if re.search(pattern, program):
            pytest.importorskip(library, reason=f"{library} is not installed")
    if "ternmem.torch" in program and not any(spec.startswith("cuda:") for spec in tern.devices()):
        pytest.skip("the page needs a GPU")


@pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """All blocks of a page are one program. Empty lines keep the line numbers of the page."""
    text = page.read_text()
    skip_without_libraries(text)
    if "from ternmem import mpi" in text:
        # An import of ternmem.mpi in this process would start MPI in it.
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed")
    program = ""
    for found in block.finditer(text):
        line = text.count("\n", 0, found.start(1))
        program += "\n" * (line - program.count("\n")) + found[1]
    path = tmp_path / (page.stem.replace("-", "_") + ".py")
    path.write_text(program)
    ended = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, f"{page}\n{ended.stderr}"
    assert ended.stderr == ""


def test_there_are_pages_and_examples() -> None:
    assert len(pages) >= 8
    assert len(examples) >= 4


@pytest.mark.parametrize("example", examples, ids=lambda example: example.stem)
def test_an_example_runs(example: pathlib.Path) -> None:
    skip_without_libraries(example.read_text())
    ended = subprocess.run([sys.executable, example], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout != ""
