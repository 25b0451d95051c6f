"""Every public class, function and property says what it is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import ternmem as tern

public = [name for name in tern.__all__ if not name.startswith("__")]


def members(name: str) -> list[tuple[str, Any]]:
    thing = getattr(tern, name)
    if not inspect.isclass(thing):
        return []
    return [(f"{name}.{key}", value) for key, value in vars(thing).items() if not key.startswith("_")]


def text(thing: Any) -> str:
    """Return the docstring without the signatures that the binding library puts in front."""
    doc = thing.__doc__ or ""
    return "\n".join(line for line in doc.splitlines() if "->" not in line).strip()


@pytest.mark.parametrize("name", ["Array", "Column", "Elements", "Field", "HintRange", "HintReport", "HintUndo", "Hints", "Kernel",
                                  "LaunchRecorder", "LaunchSize", "LogicalType", "ManagedBuffer", "ManagedDeviceLease", "ManagedHostLease", "ManagedInfo",
                                  "MigrationPolicy", "PrefetchPlan", "Schema", "Table", "TrackingResource", "TransferCounts",
                                  "TransferGate", "Use"])
def test_classes_and_their_members(name: str) -> None:
    assert name in public
    assert text(getattr(tern, name))
    missing = [key for key, value in members(name) if not text(value)]
    assert missing == []


@pytest.mark.parametrize("name", [name for name in public if callable(getattr(tern, name)) and not inspect.isclass(getattr(tern, name))])
def test_functions(name: str) -> None:
    assert text(getattr(tern, name))
