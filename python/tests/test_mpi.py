"""ternmem.mpi on four ranks: mpi_program.py has the cases, and one mpirun runs all of them."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

program = pathlib.Path(__file__).resolve().parent / "mpi_program.py"


def _cases() -> list[str]:
    """Return the names of the cases without an import of the program, which needs mpi4py."""
    functions = [part for part in ast.parse(program.read_text()).body if isinstance(part, ast.FunctionDef)]
    return [one.name for one in functions if any(isinstance(mark, ast.Name) and mark.id == "case" for mark in one.decorator_list)]


def run(ranks: int, *command: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run a program on some ranks of this machine. Ranks may share a core and need no network but the loopback."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    options = ["--oversubscribe", "--mca", "btl", "self,vader"]
    options += ["--allow-run-as-root"] if os.getuid() == 0 else []
    return subprocess.run([mpirun, *options, "-n", str(ranks), sys.executable, *command],
                          capture_output=True, text=True, check=False, timeout=90)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    ended = run(4, program)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {"": ended.stderr, **{line["case"]: line["errors"] for line in lines}}


@pytest.mark.parametrize("case", _cases())
def test_on_four_ranks(results: dict[str, Any], case: str) -> None:
    assert case in results, f"the program ended before this case:\n{results['']}"
    assert results[case] == {}, "\n".join(f"rank {rank}:\n{text}" for rank, text in results[case].items())


def test_a_rank_hears_that_another_one_ended_with_an_exception() -> None:
    ended = run(2, program, "--leave")
    assert "rank 1 gives up" in ended.stderr
    assert "rank 0 heard: rank 0 waits for rank 1, which has left the communicator" in ended.stdout, ended.stderr


def test_only_an_import_of_the_module_needs_mpi4py() -> None:
    hidden = "import sys; sys.modules['mpi4py'] = None; import ternmem; print('imported'); import ternmem.mpi"
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == "imported\n"
    assert "pip install 'ternmem[mpi]'" in ended.stderr.splitlines()[-1]


def test_ranks_of_python_and_of_cpp_understand_each_other() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    mixed, mpirun = os.environ.get("TERN_MPI_MIXED"), shutil.which("mpirun")
    if mixed is None or mpirun is None:
        pytest.skip("the C++ ranks are not built, because there is no MPI library for C++")
    options = ["--oversubscribe", "--mca", "btl", "self,vader", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    python = [sys.executable, str(program.with_name("mpi_mixed.py"))]
    ended = subprocess.run([mpirun, *options, "-n", "2", mixed, ":", "-n", "2", *python],
                           capture_output=True, text=True, check=False, timeout=90)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Each side tells the sizes of the other.
    assert ended.stdout.count("rank 0 sends float32") == 2, ended.stdout
    assert ended.stdout.count("an all-reduce: all ranks of a collective must use the same shape") == 4, ended.stdout
