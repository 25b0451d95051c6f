"""What limits a job on 10, 100 and 1,000 GPUs: simulated transfers, and the memory that they need.

    python python/bench/scale.py [--link-bytes-per-us N] [--operation-ns N] [--picture FILE]

Prints the tables of docs/guide/scale.md. Every rank has a GPU whose memory the MPI library cannot use, and a network
card. A message travels as in ternmem.mpi: a header and an answer first, then pieces, each from the GPU to page-locked
memory, to page-locked memory of the other rank, and to its GPU. The devices are simulated: each has one engine for each
direction, and an operation on an engine takes a fixed time and its bytes divided by the rate of the link.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import tempfile
from typing import Any, NamedTuple

import ternmem as tern
from ternmem import _mpi_memory, _mpi_wire, sim

kib, mib, gib = 1 << 10, 1 << 20, 1 << 30
piece_bytes = _mpi_memory.PIECE_BYTES
gpu_counts = (10, 100, 1000)
node_gpus = 8
gpu_bytes, process_bytes = 141 * gib, 1 * gib  # of an H200, and what a process with CUDA needs beside its buffers
exchanged_bytes, reduced_bytes = 64 * mib, 256 * mib  # of each rank


class Network(NamedTuple):
    """The hardware: the network link of each rank, and the link between its host and its GPU, which is as fast."""

    bytes_per_us: int
    operation_ns: int

    def ideal_ns(self, nbytes: int) -> float:
        """How long the bytes occupy a link."""
        return nbytes * 1000 / self.bytes_per_us

    def open(self, devices: int) -> list[tern.Device]:
        """Open simulated devices that share a virtual time. Their memory has no contents."""
        lines = [f"link_bytes_per_us = {self.bytes_per_us}", f"copy_ns = {self.operation_ns}", "submit_ns = 0"]
        with tempfile.TemporaryDirectory() as folder:
            profile = pathlib.Path(folder) / "profile"
            profile.write_text("\n".join(lines) + "\n")
            options = f"devices={devices}&profile={profile}&backing=none&check=off&schedule=eager&report=quiet"
            return [tern.open_device(f"sim:{number}?{options}") for number in range(devices)]


def text_of(nbytes: float) -> str:
    power = 0
    while nbytes >= 1024 and power < 3:
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:,.0f} B" if power == 0 else f"{nbytes:,.1f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def header_bytes(nbytes: int) -> int:
    """The bytes of a header and an answer of ternmem.mpi."""
    described = _mpi_memory.describe(tern.Buffer(nbytes // 4, "float32", "sim"))
    return len(_mpi_wire.pack({**described, "ticket": 1000})) + len(_mpi_wire.pack({}))


def staging_bytes(nbytes: int) -> int:
    """The page-locked memory of one transfer in flight, as ternmem.mpi allocates it."""
    device = tern.open_device("sim")
    staged = _mpi_memory.StagedBytes(tern.Buffer(nbytes // 4, "float32", device), device.default_stream, "write")
    return sum(lane.nbytes for lane in staged._lanes)


# --- Simulated transfers


class Plan(NamedTuple):
    """How transfers use staging memory."""

    in_flight: int = 1
    piece: int = piece_bytes
    lanes: int = 2


class Lane:
    """A piece of page-locked memory on a rank, with streams of its own."""

    def __init__(self, gpu: tern.Device, card: tern.Device, nbytes: int) -> None:
        self._memory = tern.Buffer(nbytes, "uint8", gpu, kind="pinned").allocate()
        self.ptr = self._memory.ptr
        self.down, self.net, self.up = gpu.stream(), card.stream(), gpu.stream()


class Rank:
    """A GPU, and lanes to send and to receive: some for each transfer in flight."""

    def __init__(self, gpu: tern.Device, card: tern.Device, plan: Plan, longest: int) -> None:
        self.gpu, self.memory = gpu, gpu.allocate(longest)
        lanes = [[Lane(gpu, card, longest) for _ in range(plan.in_flight * plan.lanes)] for _ in range(2)]
        self.sent, self.received = lanes

    def release(self) -> None:
        """End the work on the GPU and free its memory."""
        self.gpu.synchronize()
        self.gpu.release(self.memory)


def begin(sent: Lane, received: Lane, nbytes: int) -> None:
    """Exchange a header and an answer, which have so many bytes together."""
    for _ in range(2):
        received.net.copy_bytes(received.ptr, sent.ptr, nbytes // 2)


def move(source: Rank, sent: Lane, received: Lane, target: Rank, nbytes: int) -> None:
    """Move one piece: from the GPU to a lane, to a lane of the other rank, to its GPU."""
    sent.down.copy_bytes(sent.ptr, source.memory, nbytes)
    received.net.wait(sent.down.mark())
    received.net.copy_bytes(received.ptr, sent.ptr, nbytes)
    # The next pieces in these lanes wait for this one. A wait must be queued before the stream has other work.
    sent.down.wait(received.net.mark())
    received.up.wait(received.net.mark())
    received.up.copy_bytes(target.memory, received.ptr, nbytes)
    received.net.wait(received.up.mark())


def exchange_ns(network: Network, ranks: int, peers: int, nbytes: int, plan: Plan) -> int:
    """Return how long it takes until every rank has sent a message to each of its peers.

    In step m, rank i sends to rank i + m + 1. A single rank sends to itself instead: as all ranks do the same, its
    engines are as busy as those of a rank among many.
    """
    longest = min(plan.piece, nbytes)
    devices = network.open(2 * ranks)
    begin_ns = sim.virtual_time_ns(devices[0])
    pairs = zip(devices[::2], devices[1::2], strict=True)
    all_ranks = [Rank(gpu, card, plan, longest) for gpu, card in pairs]
    described = min(header_bytes(nbytes), 2 * longest)
    for first in range(0, peers, plan.in_flight):
        now = [(rank, all_ranks[(i + step + 1) % ranks], step % plan.in_flight * plan.lanes)
               for step in range(first, min(first + plan.in_flight, peers)) for i, rank in enumerate(all_ranks)]
        for source, target, slot in now:
            begin(source.sent[slot], target.received[slot], described)
        for number, at in enumerate(range(0, nbytes, plan.piece)):
            for source, target, slot in now:
                lane = slot + number % plan.lanes
                move(source, source.sent[lane], target.received[lane], target, min(plan.piece, nbytes - at))
    for rank in all_ranks:
        rank.release()
    return max(map(sim.virtual_time_ns, devices)) - begin_ns


def share(network: Network, peers: int, nbytes: int, plan: Plan) -> float:
    """Return the part of the link's rate that one of many ranks gets."""
    return network.ideal_ns(peers * nbytes) / exchange_ns(network, 1, peers, nbytes, plan)


# --- Tables


def table(head: str, *rows: tuple[Any, ...]) -> str:
    """Return a table as Markdown."""
    lines = [f"| {head} |", "|" + "--:|" * (head.count("|") + 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms"


def whole_elements(nbytes: int) -> int:
    return nbytes // 4 * 4


def exchanges() -> list[tuple[str, int, int]]:
    """Return the exchanges of all ranks with all ranks: a name, the peers of a rank, and the bytes for each of them."""
    nodes = gpu_counts[-1] // node_gpus
    by_nodes = (f"{gpu_counts[-1]:,} as {nodes} nodes", nodes - 1, whole_elements(exchanged_bytes // nodes))
    return [*((f"{gpus:,}", gpus - 1, whole_elements(exchanged_bytes // gpus)) for gpus in gpu_counts), by_nodes]


def piece_table(network: Network) -> str:
    sizes = (64 * kib, 256 * kib, mib, 4 * mib, 16 * mib)
    rows = [(text_of(size), *(percent(share(network, 1, exchanged_bytes, Plan(1, size, lanes))) for lanes in (1, 2, 4))) for size in sizes]
    return table("piece | one piece | two pieces | four pieces", *rows)


def exchange_table(network: Network) -> str:
    rows = []
    for name, peers, nbytes in exchanges():
        shares = [percent(share(network, peers, nbytes, Plan(in_flight))) for in_flight in (1, 2, 8)]
        rows.append((name, text_of(nbytes), *shares, ms(exchange_ns(network, 1, peers, nbytes, Plan(8)))))
    return table("GPUs | bytes for each peer | 1 transfer in flight | 2 in flight | 8 in flight | time with 8", *rows)


def reduce_table(network: Network) -> str:
    rows = []
    for gpus in gpu_counts:
        steps, nbytes = 2 * (gpus - 1), whole_elements(reduced_bytes // gpus)
        time_ns = steps * exchange_ns(network, 1, 1, nbytes, Plan())
        rows.append((f"{gpus:,}", f"{steps:,}", text_of(nbytes), ms(time_ns), percent(network.ideal_ns(steps * nbytes) / time_ns)))
    return table("GPUs | steps | bytes of a step | time | of the link", *rows)


def memory_table() -> str:
    # A transfer in flight has pieces on both ranks, and a rank sends and receives.
    largest = 2 * staging_bytes(2 * piece_bytes)
    rows = []
    for gpus in gpu_counts:
        peers = gpus - 1
        control = 2 * peers * header_bytes(whole_elements(exchanged_bytes // gpus))
        staging = (8 * largest, peers * largest, node_gpus * peers * largest)
        rows.append((f"{gpus:,}", *map(text_of, staging), text_of(control), text_of(gpus * _mpi_wire.BLOCK_BYTES)))
    return table("GPUs | staging, 8 in flight | staging, all peers | staging of a node, all peers | headers | after a disagreement", *rows)


def budget_table() -> str:
    rows = [(count, text_of(count * process_bytes), text_of((gpu_bytes - count * process_bytes) / count)) for count in (1, 2, 4, 8)]
    return table("processes on a GPU | beside buffers | budget of each process", *rows)


def check_symmetry(network: Network) -> None:
    """One simulated rank stands for all of them. Simulate all ranks of the smallest job to see that it may."""
    ranks, nbytes = gpu_counts[0], exchanges()[0][2]
    one, all_of_them = (exchange_ns(network, count, ranks - 1, nbytes, Plan(2)) for count in (1, ranks))
    if one != all_of_them:
        raise SystemExit(f"one rank takes {one} ns, and {ranks} ranks take {all_of_them} ns. The tables need equal times.")


# --- The picture


def picture(network: Network) -> str:
    """Return a drawing of the share of the link's rate by the size of a message."""
    sizes = [4 * kib << (2 * i) for i in range(7)]
    left, right, top, bottom = 60, 620, 20, 300

    def x(nbytes: float) -> float:
        return round(left + (right - left) * math.log(nbytes / sizes[0], sizes[-1] / sizes[0]), 1)

    def y(part: float) -> float:
        return round(bottom - (bottom - top) * part, 1)

    lines = [f'<line x1="{left}" y1="{y(part)}" x2="{right}" y2="{y(part)}" stroke="#8886"/>'
             f'<text x="{left - 8}" y="{y(part) + 4}" text-anchor="end">{percent(part)}</text>' for part in (0, 0.25, 0.5, 0.75, 1)]
    lines += [f'<text x="{x(size)}" y="{bottom + 18}" text-anchor="middle">{text_of(size).replace(".0", "")}</text>' for size in sizes]
    lines += [f'<line x1="{x(nbytes)}" y1="{top}" x2="{x(nbytes)}" y2="{bottom}" stroke="#888" stroke-dasharray="4 4"/>'
              f'<text x="{x(nbytes) + 4}" y="{top + 12 + 16 * (" " in name)}">{name}</text>' for name, _, nbytes in exchanges()]
    for in_flight, color in ((1, "#c2410c"), (2, "#7c3aed"), (8, "#0369a1")):
        shares = [share(network, max(4, min(64, exchanged_bytes // size)), size, Plan(in_flight)) for size in sizes]
        points = " ".join(f"{x(size)},{y(part)}" for size, part in zip(sizes, shares, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines.append(f'<text x="{right + 6}" y="{y(shares[-1]) + {1: 20, 2: 4, 8: -12}[in_flight]}" fill="{color}">{in_flight} in flight</text>')
    lines.append(f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">bytes of a message; '
                 f"dashed: {exchanged_bytes // mib} MiB of each GPU for all GPUs</text>")
    style = 'font-family="sans-serif" font-size="12" fill="#777"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 350" {style}>\n' + "\n".join(lines) + "\n</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link-bytes-per-us", type=int, default=50_000, help="the rate of the links; 50000 are 400 Gbit/s")
    parser.add_argument("--operation-ns", type=int, default=2_700, help="the fixed time of an operation")
    parser.add_argument("--picture", type=pathlib.Path, help="write the picture to this file as well")
    options = parser.parse_args()
    network = Network(options.link_bytes_per_us, options.operation_ns)
    check_symmetry(network)
    print(piece_table(network), exchange_table(network), reduce_table(network), memory_table(), budget_table(), sep="\n", end="")
    if options.picture is not None:
        options.picture.write_text(picture(network))


if __name__ == "__main__":
    main()
