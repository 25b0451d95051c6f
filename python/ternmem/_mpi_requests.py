"""Requests: transfers that go on while the program does other work.

A transfer is a generator, which yields functions that return whether the transfer can advance. A Progress holds all
transfers of a communicator. A wait for one transfer advances all transfers, so two ranks that wait for different
transfers do not deadlock.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Generator
from typing import Any

from . import errors
from ._mpi_wire import failure

Steps = Generator[Callable[[], bool], None, Any]

_polls_without_pause = 2000
_first_pause = 20e-6
_longest_pause = 1e-3


class Request:
    """A transfer in flight. Its memory stays leased until the transfer is complete.

    The transfer advances only while the program is in a call on the communicator or on any of its requests. Wait for
    each request, because the other rank may need this rank to advance. ``await request`` waits in an event loop.
    """

    def __init__(self, progress: Progress, steps: Steps, what: str, is_collective: bool) -> None:
        self._progress, self._steps, self._what, self._is_collective = progress, steps, what, is_collective
        self._can_go_on: Callable[[], bool] | None = None
        self._error: BaseException | None = None
        self._result: Any = None
        self._is_over = False
        progress.add(self, is_collective)

    @property
    def is_done(self) -> bool:
        """Whether the transfer is complete or has failed. Advances all transfers, and does not wait."""
        self._progress.advance()
        return self._is_over

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the transfer is complete. Returns its memory, and raises the error of a transfer that failed.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which TimeoutError is raised; by default the timeout of the communicator. The request is then
            still in flight: wait again.
        """
        limit = self._progress.timeout if timeout is None else timeout
        began, polls, pause = time.monotonic(), 0, _first_pause
        while not self.is_done:
            polls += 1
            waited = time.monotonic() - began
            if limit is not None and waited > limit:
                raise failure(
                    errors.TimeoutError,
                    f"{self._what} has waited for {waited:.1f} s, and the limit is {limit:.1f} s. The request is still in "
                    "flight and its memory is leased. Wait for error.request again, or end the program.",
                    request=self,
                    waited_seconds=waited,
                    limit_seconds=limit,
                )
            if polls < _polls_without_pause:
                time.sleep(0)
            else:
                time.sleep(pause)
                pause = min(2 * pause, _longest_pause)
        return self._end()

    def __await__(self) -> Generator[object, None, Any]:
        return self._wait_in_loop().__await__()

    def __repr__(self) -> str:
        state = "in flight" if not self._is_over else "complete" if self._error is None else "failed"
        return f"Request({self._what}, {state})"

    async def _wait_in_loop(self) -> Any:
        pause = _first_pause
        while not self.is_done:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _longest_pause)
        return self._end()

    def _end(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def _advance(self) -> bool:
        """Go on as far as possible without a wait. Returns whether the transfer is over."""
        while not self._is_over:
            try:
                if self._can_go_on is not None and not self._can_go_on():
                    return False
                self._can_go_on = next(self._steps)
            except StopIteration as end:
                self._result, self._is_over = end.value, True
            except Exception as error:
                self._fail(error)
            except BaseException as interrupt:  # Ctrl-C
                self._error, self._is_over = interrupt, True
                raise
        return True

    def _fail(self, error: Exception) -> None:
        """Raise the error in the transfer, which closes its memory. It may go on in order to tell other ranks."""
        try:
            self._can_go_on = self._steps.throw(error)
        except StopIteration as end:
            self._result, self._is_over = end.value, True
        except Exception as final:
            self._error, self._is_over = final, True


class Progress:
    """The transfers of a communicator. It belongs to one thread at a time, as the communicator does."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._in_flight: list[Request] = []
        # Collectives run one after the other: all ranks must make their calls of MPI in one order.
        self._collectives: collections.deque[Request] = collections.deque()

    def add(self, request: Request, is_collective: bool) -> None:
        """Start a request."""
        (self._collectives if is_collective else self._in_flight).append(request)

    def advance(self) -> None:
        """Let each transfer go on as far as it can."""
        for request in list(self._in_flight):
            if request._advance() and request in self._in_flight:
                self._in_flight.remove(request)
        while self._collectives and self._collectives[0]._advance():
            self._collectives.popleft()

    @property
    def count(self) -> int:
        """The number of requests in flight."""
        return len(self._in_flight) + len(self._collectives)


def together(parts: list[Steps]) -> Steps:
    """Run several transfers side by side. Raises the first error after all of them have ended."""
    waiting: dict[Steps, Callable[[], bool] | None] = {part: None for part in parts}
    first_error: Exception | None = None
    while waiting:
        ready: list[tuple[Steps, Exception | None]] = []

        def is_one_ready(ready: list[tuple[Steps, Exception | None]] = ready) -> bool:
            for part, can_go_on in waiting.items():
                try:
                    if can_go_on is None or can_go_on():
                        ready.append((part, None))
                except Exception as error:
                    ready.append((part, error))
            return bool(ready)

        yield is_one_ready
        for part, error in ready:
            try:
                waiting[part] = next(part) if error is None else part.throw(error)
            except StopIteration:
                del waiting[part]
            except Exception as raised:
                del waiting[part]
                first_error = first_error or raised
    if first_error is not None:
        raise first_error
