"""RMM with Tern's memory: RMM's own resource calls Tern on the CUDA driver that the tests simulate."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ternmem as tern
from ternmem import c, libraries

rmm = pytest.importorskip("rmm", reason="RMM is not installed")
import ternmem.rmm  # noqa: E402

mib = 1 << 20


@pytest.fixture
def shares() -> Iterator[libraries.Shares]:
    made = libraries.share("cuda:0?driver=sim", limit_bytes=8 * mib, rmm=4 * mib, torch=6 * mib)
    yield made
    gc.collect()
    assert made.rmm.statistics["live_bytes"] == 0


def test_memory_is_allocated_and_freed_on_the_stream(shares: libraries.Shares) -> None:
    from rmm.pylibrmm.stream import Stream

    memory: Any = ternmem.rmm.resource(shares.rmm)
    with tern.Stream(shares.pool.device) as stream:
        for given in ((), (Stream(stream),)):
            address = memory.allocate(1000, *given)
            assert address % 256 == 0
            assert c.find_block(address).bytes == 1024
            assert c.find_block(address).tag.startswith("rmm")
            memory.deallocate(address, 1000, *given)
            assert shares.rmm.statistics["live_bytes"] == 0

    class Wrong:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0xdead

    with pytest.raises(RuntimeError, match="INVALID"):
        memory.allocate(1000, Stream(Wrong()))


def test_a_refusal_is_a_memory_error_with_the_sentence_of_tern(shares: libraries.Shares) -> None:
    memory: Any = ternmem.rmm.resource(shares.rmm)
    held = tern.Buffer(5 * mib, "uint8", shares.pool.device, resource=shares.torch, tag="torch").allocate()
    with pytest.raises(MemoryError, match="budget 'libraries' cannot hold 4.0 MiB more") as caught:
        memory.allocate(4 * mib)
    assert "torch 5.0 MiB" in str(caught.value)
    del held


def test_the_resource_lives_as_long_as_its_memory(shares: libraries.Shares) -> None:
    memory: Any = ternmem.rmm.resource(shares.rmm)
    address = memory.allocate(1000)
    del memory
    gc.collect()
    assert shares.rmm.statistics["live_bytes"] == 1024
    c.free(address)


def test_the_error_without_rmm_names_the_package() -> None:
    program = "import sys; sys.modules['rmm'] = None; import ternmem.rmm"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: ternmem.rmm needs RMM" in ended.stderr
    assert "Install 'rmm-cu12' or 'rmm-cu13'" in ended.stderr
