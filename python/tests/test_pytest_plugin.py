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
    result.assert_outcomes(failed=3)
    text = result.stdout.str()
    assert text.count("TERN-S101 missing-wait   ") == 3, "one report for each run"
    assert "  replay  " not in text
    assert "test_it_finds_a_missing_wait.py:6" in text, "the line of the fill that should have waited"
    assert "TERN_SIM_SEED=2 pytest" in text


def test_it_fails_if_the_test_hides_the_violation(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        import ternmem as tern

        def test_hidden(tern_sim):
            memory = tern_sim.device.allocate(4096)
            tern_sim.stream("produce").fill_bytes(memory, 4096, 1)
            with pytest.raises(tern.ViolationError):
                tern_sim.stream("consume").fill_bytes(memory, 4096, 2)
    """)
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "2")
    result.assert_outcomes(passed=2, errors=2)
    text = result.stdout.str()
    assert text.count("TERN-S101 missing-wait   ") >= 2
    assert "  replay  " not in text
    assert "  repeat  TERN_SIM_SEED=1 pytest 'test_it_fails_if_the_test_hides_the_violation.py::test_hidden'" in text


def test_a_skip_does_not_hide_a_finding(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        import ternmem as tern

        def test_skipped(tern_sim):
            memory = tern_sim.device.allocate(4096)
            tern_sim.stream("produce").fill_bytes(memory, 4096, 1)
            try:
                tern_sim.stream("consume").fill_bytes(memory, 4096, 2)
            except tern.ViolationError:
                pytest.skip("cannot run")
    """)
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "1")
    result.assert_outcomes(skipped=1, errors=1)


def test_an_expected_failure_does_not_fail_the_teardown(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.xfail
        def test_known(tern_sim):
            memory = tern_sim.device.allocate(4096)
            tern_sim.stream("produce").fill_bytes(memory, 4096, 1)
            tern_sim.stream("consume").fill_bytes(memory, 4096, 2)
    """)
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "2")
    result.assert_outcomes(xfailed=2)


def test_a_failed_test_reports_no_leaks(pytester: pytest.Pytester) -> None:
    """The traceback of the failure keeps the buffers of the test alive. They are no leak."""
    pytester.makepyfile("""
        import ternmem as tern

        def test_wrong(tern_sim):
            grid = tern.Buffer(1000, device=tern_sim.device).fill(1)
            assert (grid.to_numpy() == 2).all()
    """)
    result = pytester.runpytest_subprocess(*plugin, "--tern-seeds", "2")
    result.assert_outcomes(failed=2)
    assert "TERN-S206" not in result.stdout.str()


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
