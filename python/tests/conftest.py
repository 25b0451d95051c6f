"""Devices for the tests: each test of `device` runs on every kind that this machine has."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

import ternmem as tern


def _specs() -> list[str]:
    found = ["host", "sim:0", "cuda:0?driver=sim"]
    found += [spec for spec in tern.devices() if spec.startswith(("cuda:0", "opencl:0"))]
    return found


@pytest.fixture(scope="session", autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails the run if memory of a shared device is still allocated at its end, with the lines that allocated it."""
    shared = [tern.open_device(spec) for spec in _specs()]
    kinds = [(device, kind) for device in shared for kind in ("device", "pinned")]
    tracked = []
    for device, kind in kinds:
        try:
            resource = tern.TrackingResource(tern.default_resource(device, kind))
        except tern.UnsupportedError:
            continue
        tern.set_default_resource(resource)
        tracked.append((device, resource))
    yield
    sys.last_value = None  # pytest keeps the last failure, and its frames keep buffers
    gc.collect()
    leaked = []
    for device, resource in tracked:
        device.synchronize()
        tern.reclaim_exported()
        tern.reclaim_deferred()
        if resource.live_blocks():
            leaked.append(f"{device.spec}: {resource.leak_report()}")
    assert not leaked, "\n".join(leaked)


@pytest.fixture(params=_specs())
def device(request: pytest.FixtureRequest) -> Iterator[tern.Device]:
    yield tern.open_device(request.param)


@pytest.fixture(params=[spec for spec in _specs() if spec != "host"])
def accelerator(request: pytest.FixtureRequest) -> Iterator[tern.Device]:
    """A device with memory of its own."""
    opened = tern.open_device(request.param)
    if opened.can("host_access"):
        pytest.skip("the device uses the host's memory")
    yield opened
