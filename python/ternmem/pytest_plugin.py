"""A pytest fixture that runs a test on a simulated device with several schedules.

The fixture ``tern_sim`` has a new simulated device. A test that uses the fixture runs once for each seed
(``--tern-seeds N``, 10 by default). If the checker finds an error, the test fails with a report. The last line
of the report is a command that repeats the run.

    def test_pipeline(tern_sim):
        produce(tern_sim.stream("produce"), tern_sim.device)
        consume(tern_sim.stream("consume"), tern_sim.device)
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from . import Device, sim


class SimulatedRun:
    """One run of a test: a device and its streams."""

    def __init__(self, seed: int) -> None:
        from . import sim

        self.seed = seed
        self.device = sim.open(seed=seed, print_findings=False)
        self.has_failed = False
        self.is_reported = False

    def stream(self, name: str = "") -> object:
        """Make a stream with a name for reports."""
        return self.device.stream(name)


_run = pytest.StashKey[SimulatedRun]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ternmem")
    group.addoption("--tern-seeds", type=int, default=10, metavar="N", help="run tests of tern_sim with N schedules")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tern_seed" not in metafunc.fixturenames:
        return
    given = os.environ.get("TERN_SIM_SEED")
    seeds = [int(given, 0)] if given else list(range(metafunc.config.getoption("--tern-seeds")))
    metafunc.parametrize("tern_seed", seeds, ids=lambda seed: f"seed{seed}")


def _empty_pools(device: Device) -> None:
    """Return the memory that the default pools keep for reuse: it is no leak of the test."""
    from . import UnsupportedError, default_resource, reclaim_deferred

    reclaim_deferred()
    for kind in ("device", "pinned", "managed"):
        try:
            default_resource(device, kind).trim()
        except UnsupportedError:
            continue


def _report(item: pytest.Item, finding: sim.Finding, seed: int) -> str:
    """Return the report of a finding. Its last line repeats the run, so the line 'replay' is left out."""
    lines = [line for line in str(finding).rstrip().splitlines() if not line.startswith("  replay ")]
    command = f"TERN_SIM_SEED={seed} pytest '{item.nodeid.split('[')[0]}'"
    _, _, note = finding.replay.partition("  (")  # such as "(several threads made calls: the schedule may differ)"
    lines.append(f"  repeat  {command}" + (f"  # ({note}" if note else ""))
    return "\n".join(lines)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add the first finding to the failure of a test body, so that the teardown need not fail too."""
    outcome = yield
    run = item.stash.get(_run, None)
    if run is None or call.when == "teardown" or call.excinfo is None:
        return
    if call.excinfo.errisinstance(pytest.skip.Exception):  # a skipped test shows no report: let the teardown fail
        return
    from . import sim

    run.has_failed = True
    found = sim.findings(run.device)
    if found:
        run.is_reported = True
        outcome.get_result().sections.append(("ternmem", _report(item, found[0], run.seed)))


@pytest.fixture
def tern_sim(tern_seed: int, request: pytest.FixtureRequest) -> Iterator[SimulatedRun]:
    """A simulated device that fails the test with what its checker found."""
    from . import sim

    run = SimulatedRun(tern_seed)
    request.node.stash[_run] = run
    yield run
    del request.node.stash[_run]  # the node lives until the end of the session, and the device need not
    gc.collect()
    run.device.synchronize()
    if run.is_reported:
        return
    _empty_pools(run.device)
    found = sim.findings(run.device)
    if not found and not run.has_failed:  # the traceback of a failed test keeps its buffers alive
        found = sim.leaks(run.device)
    if found:
        pytest.fail(_report(request.node, found[0], run.seed), pytrace=False)
