"""Rates of Dask and Arrow Flight across a network link, beside those of a plain socket.

    python python/bench/network.py [--rate MBIT] [--mib MIB] [--device SPEC] [--repeats N] [--goal PERCENT]

The link is between two network namespaces of this machine, and `tc` limits its rate. This needs root. The programs of the
example of Dask run across the link too, every byte that arrives is compared, and at the end the link is cut.

With a goal, transfers repeat only until they reach it. The program ends with 1 if one does not, and with 77 where network
namespaces are not permitted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import pathlib
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import link
import numpy as np

here, there = link.addresses
socket_port, flight_port, scheduler_port = 5001, 5002, 5003
mib = 1 << 20
not_permitted = 77
example = pathlib.Path(__file__).resolve().parent.parent / "examples/05_dask.py"


class Options(NamedTuple):
    """What both ends know."""

    rate: int
    mib: int
    device: str
    repeats: int
    goal: int

    @property
    def nbytes(self) -> int:
        """The bytes of one transfer."""
        return self.mib * mib

    def share(self, seconds: float) -> float:
        """The percentage of the rate of the link that a transfer used."""
        return 100 * self.nbytes * 8 / (seconds * self.rate * 1e6)

    def best(self, body: Callable[[], Any]) -> float:
        """The shortest time in seconds."""
        shortest = float("inf")
        for _ in range(self.repeats):
            begin = time.perf_counter()
            body()
            shortest = min(shortest, time.perf_counter() - begin)
            if 0 < self.goal <= self.share(shortest):
                break
        return shortest


def elements(nbytes: int) -> Any:
    """Return what travels: random numbers, which nothing can compress."""
    return np.random.default_rng(7).integers(0, 1 << 62, nbytes // 8)


def is_right(value: Any) -> bool:
    """Whether all bytes of a buffer or a column have arrived."""
    return np.array_equal(value.to_numpy(), elements(value.nbytes))


def check(is_right: bool, what: str) -> None:
    if not is_right:
        raise SystemExit(f"{what} differs from what was sent")


# --- The far end: a socket, a server of Flight and a worker


def serve_socket(nbytes: int) -> None:
    """Send the bytes to everyone who connects."""
    data = elements(nbytes).tobytes()
    with socket.create_server((there, socket_port)) as server:
        while True:
            with server.accept()[0] as connection:
                connection.sendall(data)


def serve_tables(nbytes: int) -> Any:
    import ternmem as tern
    import ternmem.flight

    names = tern.Column(["a", None, "bcd", ""] * 250)
    tables = {
        "large": tern.Table({"x": tern.Column(elements(nbytes), "int64")}),
        "masses": tern.Table({"id": tern.Column(np.arange(1000), "int64"), "name": names}),
    }
    return ternmem.flight.Server(tables, f"grpc://{there}:{flight_port}")


async def work(options: Options) -> None:
    """Be a worker until the input of this process ends."""
    import dask.distributed

    import ternmem.dask

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    plugin = ternmem.dask.WorkerPlugin(options.device, 8 * options.nbytes)
    settings: dict[str, Any] = {"nthreads": 1, "name": "1", "host": there, "data": ternmem.dask.Store, "plugins": [plugin]}
    async with dask.distributed.Worker(f"tcp://{here}:{scheduler_port}", dashboard=False, **settings):
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def be_the_far_end(options: Options) -> None:
    threading.Thread(target=serve_socket, args=(options.nbytes,), daemon=True).start()
    with serve_tables(options.nbytes):
        print("ready", flush=True)
        if sys.stdin.readline() != "":  # a scheduler runs
            asyncio.run(work(options))


# --- The near end, which measures


def receive(nbytes: int) -> None:
    """Receive through a plain socket, into memory that exists."""
    data = bytearray(nbytes)
    view, arrived = memoryview(data), 0
    with socket.create_connection((there, socket_port)) as connection:
        while arrived < nbytes:
            count = connection.recv_into(view[arrived:])
            check(count > 0, "the stream of the socket")
            arrived += count


def fetch(name: str, options: Options, timeout: float = 60) -> Any:
    import ternmem.flight

    return ternmem.flight.fetch(f"grpc://{there}:{flight_port}", name, device=options.device, timeout=timeout)


def measure_flight(options: Options) -> float:
    masses = fetch("masses", options)
    check(masses["id"].to_numpy().tolist() == list(range(1000)), "a column of numbers")
    check(masses["name"].to_pylist() == ["a", None, "bcd", ""] * 250, "a column of texts")
    tables = []
    seconds = options.best(lambda: tables.append(fetch("large", options)))
    check(all(is_right(table["x"]) for table in tables), "a table of Flight")
    return seconds


def make(nbytes: int) -> Any:
    import ternmem as tern

    return tern.Buffer.from_numpy(elements(nbytes))


def use(buffer: Any) -> int:
    """Use a buffer on a worker. Its memory is then on the device of the worker."""
    return int(buffer.nbytes)


def move(client: Any, options: Options, sender: str, receiver: str) -> float:
    """Send buffers from one worker to another. Each buffer travels once, because the receiver keeps it."""
    from dask.distributed import wait

    sent = [client.submit(make, options.nbytes, workers=[sender], pure=False) for _ in range(options.repeats)]
    wait(sent)
    left = list(sent)
    seconds = options.best(lambda: client.submit(use, left.pop(), workers=[receiver], pure=False).result())
    check(client.submit(is_right, sent[-1], workers=[receiver], pure=False).result(), "a buffer of Dask")
    return seconds


def run_example(client: Any) -> None:
    """Run the programs of the example. They check their own results."""
    functions = runpy.run_path(str(example))
    with contextlib.redirect_stdout(sys.stderr):
        functions["transpose_matrix"](client)
        functions["group_by"](client)


def measure_dask(options: Options) -> Iterator[tuple[str, float]]:
    from dask.distributed import Client

    import ternmem.dask

    settings: dict[str, Any] = {"host": here, "scheduler_port": scheduler_port, "threads_per_worker": 1, "dashboard_address": None}
    with (
        ternmem.dask.LocalCluster(1, device=options.device, budget_bytes=8 * options.nbytes, **settings) as cluster,
        Client(cluster) as client,
    ):
        print("scheduler", flush=True)
        client.wait_for_workers(2, timeout=30)
        run_example(client)
        near, far = sorted(client.scheduler_info(n_workers=-1)["workers"], key=lambda address: there in address)
        yield "Dask, from the far end", move(client, options, far, near)
        yield "Dask, to the far end", move(client, options, near, far)


def cut_the_link(options: Options) -> str:
    """Cut the link during a fetch. Neither end is told, as with a machine that loses its power."""

    def cut() -> None:
        time.sleep(0.1)
        subprocess.run(["ip", "link", "set", link.device, "down"], check=True)

    cutting = threading.Thread(target=cut)
    cutting.start()
    begin = time.perf_counter()
    try:
        fetch("large", options, timeout=0.5)
    except Exception as error:
        cutting.join()
        seconds = time.perf_counter() - begin
        return f"{type(error).__name__} after {seconds:.1f} s"
    raise SystemExit("a fetch ended well although the link was cut")


def be_the_near_end(options: Options) -> None:
    """Print a line with a name and the seconds for each transfer."""
    print(f"a plain socket={options.best(lambda: receive(options.nbytes))}")
    print(f"Flight={measure_flight(options)}")
    for name, seconds in measure_dask(options):
        print(f"{name}={seconds}")
    print(f"a fetch across a cut link={cut_the_link(options)}")


# --- Both ends


def run(options: Options) -> dict[str, str]:
    """Run both ends. Returns what the near end printed."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-B", __file__, *(f"--{name}={value}" for name, value in options._asdict().items())]
    with link.open_link(options.rate) as made, contextlib.ExitStack() as stack:

        def start(end: int) -> Any:
            started = stack.enter_context(subprocess.Popen([*made.inside(end), *command, f"--end={end}"], **pipes))
            stack.callback(started.kill)
            return started

        far = start(1)
        check(far.stdout.readline() == "ready\n", "the start of the far end")
        near = start(0)
        printed = {}
        for line in near.stdout:
            if line == "scheduler\n":
                far.stdin.write("work\n")
                far.stdin.flush()
            else:
                name, _, value = line.rstrip("\n").partition("=")
                printed[name] = value
        if near.wait() != 0:
            raise SystemExit(f"the near end ended with {near.returncode}")
        return printed


def report(options: Options, printed: dict[str, str]) -> bool:
    """Print the table. Returns whether all rates reach the goal."""
    cut = printed.popitem()
    seconds = {name: float(value) for name, value in printed.items()}
    print(f"a link of {options.rate} Mbit/s, {options.mib} MiB to the device '{options.device}'")
    print(f"{'':<26}{'MB/s':>8}{'of the rate':>14}{'of the socket':>16}")
    for name, each in seconds.items():
        of_socket = 100 * seconds["a plain socket"] / each
        print(f"{name:<26}{options.nbytes / each / 1e6:>8.1f}{options.share(each):>12.0f} %{of_socket:>14.0f} %")
    print(f"{cut[0]}: {cut[1]}")
    slow = [name for name, each in seconds.items() if options.share(each) < options.goal]
    if slow:
        print(f"below the goal of {options.goal} % of the rate: {', '.join(slow)}")
    return not slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=400, help="of the link, in megabits in a second")
    parser.add_argument("--mib", type=int, default=32, help="the size of a transfer")
    parser.add_argument("--device", default="sim", help="where the transfers begin and end")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--goal", type=int, default=0, help="percent of the rate")
    parser.add_argument("--end", type=int, choices=[0, 1], help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    end, options = given.pop("end"), Options(**given)
    if end is not None:
        (be_the_far_end if end else be_the_near_end)(options)
        return 0
    try:
        printed = run(options)
    except link.NotPermittedError as error:
        print(f"not run: {error}", file=sys.stderr)
        return not_permitted
    return 0 if report(options, printed) else 1


if __name__ == "__main__":
    sys.exit(main())
