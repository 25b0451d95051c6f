# Written by python/stubs.py with nanobind 3.1.0 and Python 3.11. Do not edit.
import builtins
import collections.abc
import typing

import numpy.typing as npt
"""
The simulated device: a device in host memory that checks the order of every access.
"""

import ternmem._core


class Finding:
    """An error that the checker found."""

    @property
    def code(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def what(self) -> str: ...

    @property
    def fix(self) -> str: ...

    @property
    def replay(self) -> str: ...

    @property
    def site(self) -> str | None: ...

    def json(self) -> str: ...

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

def open(*, seed: int = 0, schedule: str = 'mix', mode: str = 'raise', reuse: str = 'hostile', faults: str = '', profile: str = '', memory_bytes: int | None = None, print_findings: bool = True, per_thread_host: bool = False, strict_kernels: bool = False) -> ternmem._core.Device:
    """
    Open a new simulated device.

    Parameters
    ----------
    seed : int
        Determines every choice of the device.
    schedule : {'mix', 'lazy', 'eager', 'random', 'skewed', 'stall_one', 'pct'}
    mode : {'raise', 'collect', 'abort'}
        What happens when the checker finds an error.
    reuse : {'hostile', 'friendly'}
        Which freed memory the simulated driver reuses.
    faults : str
        The fault plan, such as ``allocate#3=oom``.
    profile : str
        The simulated hardware: ``h200``, ``small`` or the path of a profile.
    memory_bytes : int, optional
        Device memory.
    strict_kernels : bool
        Whether the checker finds what a kernel touches and did not declare.
    """

def findings(device: ternmem._core.Device) -> list[Finding]:
    """Return what the checker has found so far."""

def leaks(device: ternmem._core.Device) -> list[Finding]:
    """Return the live allocations as findings."""

def set_faults(device: ternmem._core.Device, plan: str) -> None:
    """Replace the fault plan."""

def calls(device: ternmem._core.Device, fault_class: str) -> int:
    """Return the number of calls of a class, such as ``copy``."""

def migrated_bytes(device: ternmem._core.Device) -> int:
    """
    Return how many bytes of managed memory had to migrate so far, in either direction.
    """

def trace_hash(device: ternmem._core.Device) -> int:
    """
    Return a hash of everything that happened. Equal runs have equal hashes.
    """

def hold(stream: ternmem._core.Stream) -> int:
    """Hold a stream at this point. Returns a number for resume()."""

def resume(device: ternmem._core.Device, hold: int) -> None:
    """End a hold."""
