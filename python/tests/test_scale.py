"""The tables and the picture of docs/guide/scale.md are what python/bench/scale.py computes."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import ternmem as tern
from ternmem import sim

root = pathlib.Path(__file__).resolve().parent.parent.parent
program = root / "python/bench/scale.py"
page = root / "docs/guide/scale.md"


def run(*options: str | pathlib.Path) -> str:
    ended = subprocess.run([sys.executable, "-B", program, *options], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_page_shows_what_the_program_computes(tmp_path: pathlib.Path) -> None:
    tables = run("--picture", tmp_path / "scale.svg").strip().split("\n\n")
    assert len(tables) == 5
    shown = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.M)
    computed = [table for table in shown if "--:" in table]
    assert computed == [table + "\n" for table in tables], f"copy the tables of {program} to {page}"
    assert (tmp_path / "scale.svg").read_text() == (root / "docs/guide/images/scale.svg").read_text()


def test_virtual_time_follows_the_cost_model(tmp_path: pathlib.Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text("link_bytes_per_us = 1000\ncopy_ns = 500\nsubmit_ns = 0\n")
    device = sim.open(schedule="eager", profile=str(profile))
    begin = sim.virtual_time_ns(device)
    tern.Buffer(10_000, "uint8", device).copy_from(tern.Buffer(10_000, "uint8", device, kind="pinned").fill(1))
    device.synchronize()
    # 10,000 bytes at 1,000 in a microsecond, and the fixed time of the copy; the fill of host memory adds its own.
    assert 10_500 <= sim.virtual_time_ns(device) - begin < 12_000
    with pytest.raises(tern.Error):
        sim.virtual_time_ns(tern.open_device("host"))
