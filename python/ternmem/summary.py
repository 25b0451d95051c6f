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


def buffer_html(buffer: UnifiedBuffer) -> str:
    """Return a table that shows shape, dtype, places, state and bytes of a buffer."""
    rows = (
        ("shape", str(buffer.shape)),
        ("dtype", str(buffer.dtype)),
        ("bytes", format_bytes(buffer.nbytes)),
        ("state", buffer.state.value),
        ("up to date in", ", ".join(buffer.valid_places()) or "nowhere"),
        ("device", buffer.default_device.spec),
    )
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>UnifiedBuffer</caption>{cells}</table>"


def memory_summary() -> str:
    """Return what the devices in use hold, and what unified buffers have copied."""
    lines = []
    device = _core.current_device()
    memory = device.memory()
    lines.append(
        f"{device.spec}: {format_bytes(memory.total_bytes - memory.free_bytes)} of "
        f"{format_bytes(memory.total_bytes)} in use ({device.name})"
    )
    pool = _core.default_resource(device).statistics
    lines.append(
        f"  default pool: {format_bytes(pool['live_bytes'])} live in {pool['live_blocks']} blocks, "
        f"{format_bytes(pool['reserved_bytes'])} held, peak {format_bytes(pool['peak_live_bytes'])}"
    )
    moved = _core.unified_totals()
    lines.append(
        f"  unified buffers copied {format_bytes(moved['to_device']['bytes'])} to devices and "
        f"{format_bytes(moved['to_host']['bytes'])} to the host"
    )
    return "\n".join(lines)
