"""A pytest fixture that runs a test on a simulated device with several schedules.

``tern_sim`` gives a new simulated device. A test that uses it runs once for each seed
(``--tern-seeds N``, 10 by default). If the checker finds an error, the test fails with the report, whose
last line repeats the run.

    def test_pipeline(tern_sim):
        produce(tern_sim.stream("produce"), tern_sim.device)
        consume(tern_sim.stream("consume"), tern_sim.device)
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import Device


class SimulatedRun:
    """One run of a test: a device and its streams."""

    def __init__(self, seed: int) -> None:
        from . import sim

        self.seed = seed
        self.device = sim.open(seed=seed, print_findings=False)

    def stream(self, name: str = "") -> object:
        """Make a stream with a name for reports."""
        return self.device.stream(name)


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


@pytest.fixture
def tern_sim(tern_seed: int, request: pytest.FixtureRequest) -> Iterator[SimulatedRun]:
    """A simulated device that fails the test with what its checker found."""
    from . import sim

    run = SimulatedRun(tern_seed)
    yield run
    gc.collect()
    run.device.synchronize()
    _empty_pools(run.device)
    found = sim.findings(run.device) or sim.leaks(run.device)
    if found:
        command = f"TERN_SIM_SEED={run.seed} pytest '{request.node.nodeid.split('[')[0]}'"
        pytest.fail(f"{found[0]}\n  repeat  {command}", pytrace=False)
