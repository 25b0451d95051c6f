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
    """
    An error that the checker found. ``print(finding)`` shows the whole report.
    """

    @property
    def code(self) -> str:
        """The code, such as ``TERN-S101``."""

    @property
    def title(self) -> str:
        """The name of the code, such as ``missing-wait``."""

    @property
    def what(self) -> str:
        """What is wrong, as a sentence."""

    @property
    def fix(self) -> str:
        """What to change."""

    @property
    def replay(self) -> str:
        """How to repeat the run."""

    @property
    def site(self) -> str | None:
        """The line that made the error, or None if it is not known."""

    def json(self) -> str:
        """Return the finding as a JSON object."""

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
        How the device chooses the stream that runs next.
    mode : {'raise', 'collect', 'abort'}
        When the checker finds an error: raise ViolationError, keep it for findings(), or end the process.
    reuse : {'hostile', 'friendly'}
        Which freed memory the simulated driver reuses.
    faults : str
        The fault plan, such as ``allocate#3=oom``.
    profile : str
        The simulated hardware: ``h200``, ``small`` or the path of a profile.
    memory_bytes : int, optional
        The size of device memory; by default that of the profile.
    print_findings : bool
        Whether findings are also printed to standard error.
    per_thread_host : bool
        Whether the checker treats the threads of the host separately.
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

def virtual_time_ns(device: ternmem._core.Device) -> int:
    """
    Return the virtual time since the device was opened, in nanoseconds. The profile of the device sets
    how long operations take.
    """

def trace_hash(device: ternmem._core.Device) -> int:
    """
    Return a hash of everything that happened. Equal runs have equal hashes.
    """

def hold(stream: ternmem._core.Stream) -> int:
    """Hold a stream at this point. Returns a number for resume()."""

def resume(device: ternmem._core.Device, hold: int) -> None:
    """End a hold."""
