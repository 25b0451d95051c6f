"""Recordings: what a program did with memory, in a file."""

import collections.abc
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import ternmem as tern
from ternmem import trace

TOOL = os.environ.get("TERN_TOOL") or shutil.which("tern")


@pytest.fixture(autouse=True)
def stopped() -> collections.abc.Iterator[None]:
    yield
    trace.stop()


def report(path: pathlib.Path) -> str:
    if TOOL is None or not os.path.exists(TOOL):
        pytest.skip("the tern command is not here")
    run = subprocess.run([TOOL, "report", str(path)], capture_output=True, text=True, check=True)
    return run.stdout


def test_a_recording_names_the_python_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.trace"
    trace.start(path)
    assert trace.is_recording()
    with trace.Range("step 1"):
        kept = tern.Buffer(1000, "float32", device="host", tag="kept")
        kept.fill(1.0)
    trace.stop()
    assert not trace.is_recording()
    assert path.stat().st_size > 0
    text = report(path)
    assert "kept" in text
    assert "test_trace.py:" in text
    assert "Not freed" in text


def test_a_ring_is_written_on_request(tmp_path: pathlib.Path) -> None:
    trace.start_ring(1 << 20)
    for _ in range(10):
        tern.Buffer(1000, "float32", device="host", tag="scratch").fill(0.0)
    trace.dump(tmp_path / "ring.trace")
    assert trace.lost_events() == 0
    assert "scratch" in report(tmp_path / "ring.trace")


def test_mistakes_are_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(tern.FileError):
        trace.start(tmp_path / "no" / "folder")
    with pytest.raises(tern.InvalidArgumentError, match="at least 1.0 MiB"):
        trace.start_ring(10)
    with pytest.raises(tern.InvalidArgumentError, match="no ring"):
        trace.dump(tmp_path / "none")
    trace.start(tmp_path / "run.trace")
    with pytest.raises(tern.InvalidArgumentError, match="recording already"):
        trace.start(tmp_path / "other.trace")
    with trace.Range("a"):
        pass


def test_the_environment_starts_a_recording(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.trace"
    code = "import ternmem as tern; a = tern.Buffer(100, 'float32', device='host', tag='early'); a.fill(0)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TERN_TRACE": str(path)}, check=True)
    assert "early" in report(path)
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TERN_TRACE": "ring:x"},
                         capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "TERN_TRACE='ring:x'" in run.stderr


missing_wait = """
import ternmem as tern
device = tern.sim.open(seed=1, mode="collect", print_findings=False)
memory = device.allocate(4096)
device.stream("produce").fill_bytes(memory, 4096, 1)
device.stream("consume").fill_bytes(memory, 4096, 2)
device.synchronize()
device.release(memory)
"""


def test_a_ring_is_written_when_a_finding_is_reported(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "last.trace"
    environment = {**os.environ, "TERN_TRACE": f"ring:1MiB:{path}"}
    subprocess.run([sys.executable, "-c", missing_wait], env=environment, check=True)
    assert path.exists()
    assert "is written by stream consume while stream produce may still write it" in report(path)


holding = """
import sys
import ternmem as tern
kept = [tern.Buffer(1 << 20, "uint8", "sim", tag="weights").fill(0) for _ in range(3)]
print("ready", flush=True)
sys.stdin.readline()
"""


def test_top_shows_what_a_process_holds(tmp_path: pathlib.Path) -> None:
    if TOOL is None or not os.path.exists(TOOL):
        pytest.skip("the tern command is not here")
    environment = {**os.environ, "TERN_TRACE": str(tmp_path / "run.trace")}
    with subprocess.Popen([sys.executable, "-c", holding], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        shown = subprocess.run([TOOL, "top", str(process.pid)], capture_output=True, text=True, check=True).stdout
        process.communicate("\n")
    assert f"(process {process.pid})" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("weights")]
    assert row == ["weights", "3.0", "MiB", "3", "sim:0"]
