# Written by python/stubs.py with nanobind 3.1.0 and Python 3.11. Do not edit.
import builtins
import collections.abc
import typing

import numpy.typing as npt
"""Records what happens to memory, in a file that ``tern report`` shows."""

import os


def start(path: str | os.PathLike[str]) -> None:
    """
    Create the file, or replace it, and start to record.

    Parameters
    ----------
    path : str or os.PathLike
        ``%p`` stands for the process id.

    Raises
    ------
    FileError
        If the file cannot be created.
    InvalidArgument
        If this process is recording already, or another one is recording to the file.
    """

def start_ring(size_bytes: int) -> None:
    """
    Record into memory of this size, in which new events replace the oldest.

    Parameters
    ----------
    size_bytes : int
        At least 1 MiB. An event needs 64 bytes.
    """

def dump(path: str | os.PathLike[str]) -> None:
    """
    Write the events of the ring to a file. Recording goes on.

    Parameters
    ----------
    path : str or os.PathLike
    """

def stop() -> None:
    """
    Stop recording and close the file. Does nothing if nothing is recorded.
    """

def is_recording() -> bool:
    """
    Return whether this process is recording.

    Returns
    -------
    bool
    """

def lost_events() -> int:
    """
    Return how many events could not be recorded since the start.

    Returns
    -------
    int
    """

class Range:
    """
    Names what this thread does inside of a ``with`` statement.

    Parameters
    ----------
    name : str

    Examples
    --------
    >>> with trace.Range("step 12"):
    ...     train()
    """

    def __init__(self, name: str) -> None: ...

    def __enter__(self) -> typing.Self: ...

    def __exit__(self, type: object | None, value: object | None, traceback: object | None) -> None: ...
