"""``await`` for marks: one thread for all of them.

The thread asks the marks in turn, without the interpreter lock, and tells the event loops.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Generator

from . import _core

_first_pause = 20e-6
_longest_pause = 1e-3


class _Waiter:
    """Asks pending marks until they are done."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[tuple[_core.Mark, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread: threading.Thread | None = None

    def add(self, mark: _core.Mark) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._changed:
            self._pending.append((mark, loop, future))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="ternmem-waiter", daemon=True)
                self._thread.start()
            self._changed.notify()
        return future

    def _run(self) -> None:
        pause = _first_pause
        while True:
            with self._changed:
                while not self._pending:
                    self._changed.wait()
                    pause = _first_pause
                asked = list(self._pending)
            ended = []
            for entry in asked:
                mark, loop, future = entry
                failure: BaseException | None = None
                try:
                    if not mark.is_done and not future.cancelled():
                        continue
                except BaseException as error:
                    failure = error
                ended.append(entry)
                try:
                    loop.call_soon_threadsafe(_set, future, failure)
                except RuntimeError:  # the loop was closed
                    pass
            if ended:
                with self._changed:
                    self._pending = [entry for entry in self._pending if entry not in ended]
                pause = _first_pause
            else:
                time.sleep(pause)
                pause = min(pause * 2, _longest_pause)


def _set(future: asyncio.Future[None], failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)


_waiter = _Waiter()


def _forget_parent() -> None:
    """Start afresh in the child of a fork: its parent's thread may have held the lock."""
    global _waiter
    _waiter = _Waiter()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


async def wait(mark: _core.Mark) -> None:
    """Wait for a mark without blocking the event loop."""
    if not mark.is_done:
        await _waiter.add(mark)


def _await_mark(self: _core.Mark) -> Generator[object, None, None]:
    return wait(self).__await__()


_core.Mark.__await__ = _await_mark  # type: ignore[method-assign]
