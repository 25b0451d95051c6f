"""The pytest plug-in, on a test that a user would write."""

from __future__ import annotations

import importlib.metadata

import pytest

pytest_plugins = ["pytester"]

# An installed package names its plug-in itself.
is_installed = any(one.value == "ternmem.pytest_plugin" for one in importlib.metadata.entry_points(group="pytest11"))
plugin = [] if is_installed else ["-p", "ternmem.pytest_plugin"]

missing_wait = """
    def test_hand_over(tern_sim):
        memory = tern_sim.device.allocate(4096)
        produce, consume = tern_sim.stream("produce"), tern_sim.stream("consume")
        produce.fill_bytes(memory, 4096, 1)
        {wait}
        consume.fill_bytes(memory, 4096, 2)
        consume.synchronize()
        tern_sim.device.release(memory)
"""


def test_it_finds_a_missing_wait(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(missing_wait.format(wait="pass"))
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "3")
    result.assert_outcomes(failed=3, errors=3)
    text = result.stdout.str()
    assert "TERN-S101 missing-wait" in text
    assert "test_it_finds_a_missing_wait.py:6" in text, "the line of the fill that should have waited"
    assert "TERN_SIM_SEED=2 pytest" in text


def test_it_passes_a_correct_program(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(missing_wait.format(wait="consume.wait(produce)"))
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "5")
    result.assert_outcomes(passed=5)


def test_it_passes_a_program_with_buffers(pytester: pytest.Pytester) -> None:
    """The default pools keep memory after the last buffer. That is no leak."""
    pytester.makepyfile("""
        import ternmem as tern

        def test_pipeline(tern_sim):
            grid = tern.Buffer(1000, "float32", tern_sim.device)
            grid.fill(1, tern_sim.stream("produce"))
            grid.fill(2, tern_sim.stream("consume"))
            assert (grid.to_numpy() == 2).all()
            pinned = tern.Buffer(10, device=tern_sim.device, kind="pinned").fill(1)
            unified = tern.UnifiedBuffer(10, device=tern_sim.device, pinned=True).fill(1)
            unified.sync_to_device()
    """)
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "5")
    result.assert_outcomes(passed=5)


def test_it_reports_a_buffer_that_is_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import ternmem as tern

        kept = []

        def test_leak(tern_sim):
            kept.append(tern.Buffer(1000, device=tern_sim.device).fill(1))
    """)
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "2")
    result.assert_outcomes(passed=2, errors=2)


def test_it_reports_a_leak(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_leak(tern_sim):\n    tern_sim.device.allocate(64)\n")
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "1")
    result.assert_outcomes(passed=1, errors=1)
    assert "TERN-S206 leak" in result.stdout.str()
