"""Stubs and types: the stubs are those of the module, and everything passes mypy."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

folder = pathlib.Path(__file__).resolve().parent.parent


def test_the_stubs_are_those_of_the_module() -> None:
    pytest.importorskip("nanobind", reason="nanobind is not installed, so no stubs can be generated")
    checked = subprocess.run([sys.executable, folder / "stubs.py", "--check"], capture_output=True, text=True, check=False)
    if checked.returncode == 2:
        pytest.skip(checked.stdout.strip())
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mypy_finds_nothing() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed, so types are not checked")
    parts = [part for part in ("ternmem", "tests", "examples", "bench", "stubs.py") if (folder / part).exists()]
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", *parts],
                             cwd=folder, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_programs_are_checked_against_the_stubs(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed, so types are not checked")
    program = tmp_path / "program.py"
    program.write_text(
        "import ternmem as tern\n"
        "buffer = tern.Buffer(4, 'float32')\n"
        "buffer.no_such_method()\n"
        "wrong: str = buffer.fill(1).nbytes\n"
        "right: int = tern.UnifiedBuffer(4).fill(1).shape[0]\n"
    )
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", str(folder / "pyproject.toml"), str(program)],
                             cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'program.py:3: error: "Buffer" has no attribute "no_such_method"' in checked.stdout
    assert "program.py:4: error: Incompatible types in assignment" in checked.stdout
    assert "program.py:5" not in checked.stdout
