"""Short reports on memory, as text and as HTML for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from .unified_buffer import UnifiedBuffer


def format_bytes(count: int) -> str:
    """Return a number of bytes for people, such as ``1.5 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def _table(title: str, **rows: object) -> str:
    cells = "".join(f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(str(value))}</td></tr>"
                    for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def unified_html(buffer: UnifiedBuffer) -> str:
    """Return a table that shows shape, dtype, places, state and bytes of a buffer."""
    return _table("UnifiedBuffer", shape=buffer.shape, dtype=buffer.dtype, bytes=format_bytes(buffer.nbytes),
                  state=buffer.state.value, up_to_date_in=", ".join(buffer.valid_places()) or "nowhere",
                  device=buffer.default_device.spec)


def _buffer_html(buffer: _core.Buffer) -> str:
    state = "of another library" if buffer.is_external else "allocated" if buffer.is_allocated else "not allocated yet"
    return _table("Buffer", shape=buffer.shape, dtype=buffer.dtype, bytes=format_bytes(buffer.nbytes), state=state,
                  memory=buffer.kind, device=buffer.device.spec)


def _device_array_html(array: _core.DeviceArray) -> str:
    return _table("DeviceArray", shape=array.shape, dtype=array.dtype, bytes=format_bytes(array.nbytes),
                  state="read-only" if array.is_read_only else "writable", device=array.device.spec)


def _budget_html(budget: _core.Budget) -> str:
    limit = "none" if budget.limit_bytes is None else format_bytes(budget.limit_bytes)
    return _table("Budget", path=budget.path, limit=limit, used=format_bytes(budget.used_bytes))


def _pool_html(pool: _core.Pool) -> str:
    held = pool.statistics
    return _table("Pool", device=pool.device.spec, live=format_bytes(held["live_bytes"]), blocks=held["live_blocks"],
                  held=format_bytes(held["reserved_bytes"]), peak=format_bytes(held["peak_live_bytes"]))


_core.Buffer._repr_html_ = _buffer_html  # type: ignore[attr-defined]
_core.DeviceArray._repr_html_ = _device_array_html  # type: ignore[attr-defined]
_core.Budget._repr_html_ = _budget_html  # type: ignore[attr-defined]
_core.Pool._repr_html_ = _pool_html  # type: ignore[attr-defined]


def memory_summary(device: _core.Device | str | None = None) -> str:
    """Return what a device holds, and what all unified buffers have copied, as text.

    Parameters
    ----------
    device : Device or str, optional
        By default the current device.

    Returns
    -------
    str
        Three lines: the memory of the device, its default resource, and the copies of unified buffers.
    """
    resource = _core.default_resource(device)
    memory = resource.device.memory()
    held = resource.statistics
    moved = _core.unified_totals()
    return "\n".join((
        f"{resource.device.spec}: {format_bytes(memory.total_bytes - memory.free_bytes)} of "
        f"{format_bytes(memory.total_bytes)} in use ({resource.device.name})",
        f"  default resource '{resource.name}': {format_bytes(held['live_bytes'])} live in "
        f"{held['live_blocks']} blocks, {format_bytes(held['reserved_bytes'])} held, "
        f"peak {format_bytes(held['peak_live_bytes'])}",
        f"all unified buffers copied {format_bytes(moved['to_device']['bytes'])} to devices and "
        f"{format_bytes(moved['to_host']['bytes'])} to the host",
    ))
