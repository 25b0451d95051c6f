"""Records what happens to memory, in a file that ``tern report`` shows.

>>> from ternmem import trace
>>> trace.start("run.trace")
>>> with trace.Range("step 1"):
...     pass
>>> trace.stop()
"""

from ._core.trace import Range, dump, is_recording, lost_events, start, start_ring, stop

__all__ = ["Range", "dump", "is_recording", "lost_events", "start", "start_ring", "stop"]
