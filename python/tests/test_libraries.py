"""Budgets by library."""

from __future__ import annotations

import pytest

import ternmem as tern
from ternmem import c, libraries

mib = 1 << 20


def test_libraries_share_a_limit_and_have_their_own() -> None:
    shares = libraries.share("cuda:0?driver=sim", limit_bytes=10 * mib, torch=8 * mib, cupy=6 * mib, other=None)
    torch, cupy = c.Handle(shares.torch, "torch"), c.Handle(shares.cupy, "cupy")
    held = c.allocate(torch, 6 * mib)
    assert shares.used_bytes() == {"torch": 6 * mib, "cupy": 0, "other": 0}
    with pytest.raises(tern.OutOfBudgetError, match="budget 'libraries' cannot hold 6.0 MiB more"):
        c.allocate(cupy, 6 * mib)
    with pytest.raises(tern.OutOfBudgetError, match="budget 'libraries/torch' cannot hold 3.0 MiB more"):
        c.allocate(torch, 3 * mib)
    second = c.allocate(cupy, 4 * mib)
    line = "budget 'libraries': 10.0 MiB of 10.0 MiB; torch 6.0 MiB of 8.0 MiB, cupy 4.0 MiB of 6.0 MiB, other 0 B"
    assert shares.report() == libraries.holders(shares.cupy) == line
    assert repr(shares) == f"Shares({line})"
    c.free(held)
    c.free(second)
    assert libraries.explained("Full.", shares.cupy) == f"Full. {shares.report()}"
    assert libraries.explained("Full. In use: cupy 1 B.", shares.cupy) == "Full. In use: cupy 1 B."
    assert libraries.holders(tern.Pool("sim:0")) == libraries.holders(None) == ""


def test_the_pool_is_that_of_the_caller() -> None:
    pool = tern.Pool("sim:0")
    shares = libraries.share("sim:0", pool, name="gpu", torch=None)
    assert shares.pool is pool
    assert shares.budget.limit_bytes is None
    buffer = tern.Buffer(1000, "uint8", "sim:0", resource=shares.torch).allocate()
    assert shares.budget.used_bytes == 1024
    assert shares.report() == "budget 'gpu': 1.0 KiB; torch 1.0 KiB"
    with pytest.raises(tern.InvalidArgumentError, match=r"the pool has 1.0 KiB of live memory"):
        libraries.share("sim:0", pool, cupy=None)
    del buffer


def test_errors() -> None:
    with pytest.raises(tern.InvalidArgumentError, match=r"Name them, as in share\(0, torch=8 << 30\)"):
        libraries.share("sim:0")
    with pytest.raises(tern.InvalidArgumentError, match="'report' is an attribute of Shares"):
        libraries.share("sim:0", report=1)
    with pytest.raises(tern.DeviceMismatchError, match="the pool has memory of 'host'"):
        libraries.share("sim:0", tern.Pool("host"), torch=1)
    with pytest.raises(AttributeError, match="the shares have no library 'cupy'. They have: torch"):
        libraries.share("sim:0", torch=1).cupy  # noqa: B018
    with pytest.raises(tern.InvalidDeviceError):
        libraries.share(63, torch=1)
