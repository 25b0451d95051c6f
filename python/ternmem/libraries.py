"""Budgets by library: one pool for several libraries, with a limit for each.

>>> import ternmem as tern
>>> from ternmem import libraries
>>> shares = libraries.share("sim", limit_bytes=1 << 30, torch=600 << 20, cupy=600 << 20)
>>> shares.cupy.device.spec
'sim:0'
>>> print(shares.report())
budget 'libraries': 0 B of 1.0 GiB; torch 0 B of 600.0 MiB, cupy 0 B of 600.0 MiB
"""

from __future__ import annotations

import weakref
from typing import Any

from . import _core, errors

__all__ = ["Shares", "explained", "holders", "share"]

_all_shares: weakref.WeakSet[Shares] = weakref.WeakSet()


def _text_of(bytes: int) -> str:
    size = float(bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _use_of(budget: _core.Budget) -> str:
    limit = budget.limit_bytes
    return _text_of(budget.used_bytes) + ("" if limit is None else f" of {_text_of(limit)}")


class Shares:
    """One pool, one budget for all libraries, and a budget for each of them. :func:`share` makes it.

    ``shares.torch``, ``shares.cupy`` and so on are the resources. Pass them to ``ternmem.torch.use()``,
    ``ternmem.cupy.use()`` and so on.

    Attributes
    ----------
    pool : Resource
    budget : Budget
        The budget of all libraries.
    budgets : dict of str to Budget
        The budgets by library.
    resources : dict of str to BudgetResource
        The resources by library.
    """

    def __init__(self, pool: _core.Resource, limit_bytes: int | None, limits: dict[str, int | None], name: str) -> None:
        self.pool = pool
        self.budget = _core.Budget(name, limit_bytes)
        self.budgets = {library: _core.Budget(library, limit, parent=self.budget) for library, limit in limits.items()}
        self.resources = {library: _core.BudgetResource(pool, budget) for library, budget in self.budgets.items()}
        _all_shares.add(self)

    def __getattr__(self, name: str) -> _core.BudgetResource:
        resources = self.__dict__.get("resources", {})
        if name not in resources:
            raise AttributeError(f"the shares have no library '{name}'. They have: {', '.join(resources)}.")
        found: _core.BudgetResource = resources[name]
        return found

    def used_bytes(self) -> dict[str, int]:
        """Return the bytes that each library uses now: live, and freed memory that a stream may still use."""
        return {library: budget.used_bytes for library, budget in self.budgets.items()}

    def report(self) -> str:
        """Return a line that says who uses how much."""
        parts = ", ".join(f"{library} {_use_of(budget)}" for library, budget in self.budgets.items())
        return f"budget '{self.budget.name}': {_use_of(self.budget)}; {parts}"

    def __repr__(self) -> str:
        return f"Shares({self.report()})"


def share(device: Any, pool: _core.Resource | None = None, *, limit_bytes: int | None = None, name: str = "libraries",
          **limits: int | None) -> Shares:
    """Make a budget for all libraries and a budget for each of them, over one pool.

    A library can use what the others leave, up to its own limit. Give the libraries limits that add up to more than
    ``limit_bytes`` if they should share, and to at most ``limit_bytes`` if each should be sure of its part.

    Parameters
    ----------
    device : Device, str or int
        An int is the ordinal of a CUDA device.
    pool : Resource, optional
        A pool without live memory. By default a new pool of the device.
    limit_bytes : int, optional
        The limit of all libraries together.
    name : str
        The name of the common budget.
    **limits : int or None
        The limits by library, such as ``torch=8 << 30``. None means no limit of its own.
    """
    if isinstance(device, int):
        device = f"cuda:{device}"
    opened = device if isinstance(device, _core.Device) else _core.open_device(device)
    if not limits:
        raise errors.InvalidArgumentError("share() has no library to make a budget for. Name them, as in share(0, torch=8 << 30).")
    taken = [library for library in limits if hasattr(Shares, library) or library in ("pool", "budget", "budgets", "resources")]
    if taken:
        raise errors.InvalidArgumentError(f"'{taken[0]}' is an attribute of Shares. Use another name for the library.")
    if pool is not None and pool.device != opened:
        raise errors.DeviceMismatchError(f"the pool has memory of '{pool.device.spec}', and the budgets are for '{opened.spec}'. "
                                         "Pass a pool of this device.")
    live = 0 if pool is None else int(pool.statistics["live_bytes"])
    if live:
        raise errors.InvalidArgumentError(f"the pool has {_text_of(live)} of live memory, which the budget of each library would "
                                          "count. Pass a pool without live memory.")
    return Shares(pool if pool is not None else _core.Pool(opened), limit_bytes, limits, name)


def explained(why: str, resource: _core.Resource | None) -> str:
    """Return the message of a refusal, with the line of :func:`holders` if the message does not say who uses the budget."""
    return why if "In use: " in why else f"{why} {holders(resource)}".strip()


def holders(resource: _core.Resource | None) -> str:
    """Return a line that says which libraries use the budget of a resource, or an empty string without shares."""
    for shares in _all_shares:
        if any(one is resource for one in shares.resources.values()):
            return shares.report()
    return ""
