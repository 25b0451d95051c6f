"""Devices for the tests: each test of `device` runs on every kind that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ternmem as tern


def _specs() -> list[str]:
    found = ["host", "sim:0", "cuda:0?driver=sim"]
    found += [spec for spec in tern.devices() if spec.startswith(("cuda:0", "opencl:0"))]
    return found


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
