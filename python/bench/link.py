"""Two network namespaces of this machine, joined by a link with a limited rate: a network for tests.

The namespaces belong to two processes that end when this one does, so nothing remains of a run that is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

addresses = ("10.77.0.1", "10.77.0.2")  # of the ends; only the namespaces know them
device = "wire"  # the name of the network device at each end


class NotPermittedError(RuntimeError):
    """This process may not make network namespaces, or a program for them is missing."""


class Link:
    """The two ends of the link, 0 and 1.

    Parameters
    ----------
    holders : sequence of subprocess.Popen
        The processes that the namespaces belong to.
    """

    def __init__(self, holders: Sequence[subprocess.Popen[str]]) -> None:
        self._holders = holders

    def inside(self, end: int) -> list[str]:
        """Return what to put before a command so that it runs at this end."""
        return ["nsenter", f"--net=/proc/{self._holders[end].pid}/ns/net"]

    def connect(self, rate_mbit: int) -> None:
        """Make the link and limit its rate, in each direction.

        Parameters
        ----------
        rate_mbit : int
            Megabits in a second, with the headers of the packets.
        """
        here, there = (holder.pid for holder in self._holders)
        _call(*f"ip link add name {device} netns {here} type veth peer name {device} netns {there}".split())
        # The rate is kept by pauses of a millisecond or less, and no packet is larger than 64 KiB.
        burst_bytes = max(rate_mbit * 125, 128 << 10)
        for end, address in enumerate(addresses):
            self._at(end, f"ip address add {address}/24 dev {device}")
            self._at(end, f"ip link set {device} up")
            self._at(end, "ip link set lo up")
            self._at(end, f"tc qdisc add dev {device} root tbf rate {rate_mbit}mbit burst {burst_bytes} latency 50ms")

    def _at(self, end: int, command: str) -> None:
        _call(*self.inside(end), *command.split())


def _call(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise NotPermittedError(f"'{' '.join(command)}' failed: {ended.stderr.strip()}")


def _hold() -> subprocess.Popen[str]:
    """Start a process in a new namespace, which ends when this process does: then its input ends."""
    command = ["unshare", "--net", "sh", "-c", "echo ready; exec cat"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True)


@contextlib.contextmanager
def open_link(rate_mbit: int) -> Iterator[Link]:
    """Make a link. It ends with the block.

    Raises NotPermittedError where namespaces are not permitted: they need root, or a kernel that lets users have them.

    Parameters
    ----------
    rate_mbit : int
    """
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            raise NotPermittedError(f"the program '{program}' is not installed. Debian has it in {package}")
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(_hold()) for _ in addresses]
        try:
            for holder in holders:
                assert holder.stdout is not None and holder.stderr is not None
                if holder.stdout.readline() != "ready\n":
                    raise NotPermittedError(f"network namespaces are not permitted: {holder.stderr.read().strip()}")
            link = Link(holders)
            link.connect(rate_mbit)
            yield link
        finally:
            for holder in holders:
                holder.kill()
