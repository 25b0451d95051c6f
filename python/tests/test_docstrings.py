"""Every public class, function and property says what it is."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any

import pytest

import ternmem as tern

public = [name for name in tern.__all__ if not name.startswith("__")]


def named(name: str) -> Any:
    return attrgetter(name)(tern)


def members(name: str) -> list[tuple[str, Any]]:
    thing = named(name)
    if not inspect.isclass(thing):
        return []
    return [(f"{name}.{key}", value) for key, value in vars(thing).items() if not key.startswith("_")]


def text(thing: Any) -> str:
    """Return the docstring without the signatures that the binding library puts in front."""
    doc = thing.__doc__ or ""
    return "\n".join(line for line in doc.splitlines() if "->" not in line).strip()


classes = [name for name in public if inspect.isclass(getattr(tern, name)) and not issubclass(getattr(tern, name), BaseException)]


@pytest.mark.parametrize("name", [*classes, "sim.Finding"])
def test_classes_and_their_members(name: str) -> None:
    assert text(named(name))
    missing = [key for key, value in members(name) if not text(value)]
    assert missing == []


@pytest.mark.parametrize("name", tern.errors.__all__)
def test_exceptions(name: str) -> None:
    error = getattr(tern, name)
    assert error.__doc__
    assert all(error.__doc__ != base.__doc__ for base in error.__bases__)


@pytest.mark.parametrize("name", [name for name in public if callable(getattr(tern, name)) and not inspect.isclass(getattr(tern, name))])
def test_functions(name: str) -> None:
    assert text(getattr(tern, name))
