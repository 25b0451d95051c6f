"""Recordings in the formats of others: ``tern convert``, judged by those who own the formats.

Each test is skipped where its library is not installed.
"""

from __future__ import annotations

import base64
import collections
import json
import os
import pathlib
import pickle
import pickletools
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ternmem as tern
from ternmem import trace

TOOL = os.environ.get("TERN_TOOL") or shutil.which("tern")
ACTIVE = ("active_allocated", "active_pending_free")
# What the viewer in the browser reads.
OPCODES = {"PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "SETITEMS", "APPENDS", "TUPLE2", "BINUNICODE", "BININT",
           "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"}


def run_tool(*arguments: object) -> str:
    if TOOL is None or not os.path.exists(TOOL):
        pytest.skip("the tern command is not here")
    run = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


class Report:
    """What ``tern report`` shows of a file."""

    def __init__(self, path: pathlib.Path, folder: pathlib.Path) -> None:
        page = folder / "report.html"
        run_tool("report", path, "-o", page)
        text = page.read_text()
        self.facts = json.loads(text.split('id="facts">')[1].split("</script>")[0])
        self._columns = base64.b64decode(text.split('id="columns">')[1].split("</script>")[0])
        self.peaks = {self.device(peak): peak["live"] for peak in self.facts["peaks"]}
        self.leaks: collections.Counter[str] = collections.Counter()
        for leak in self.facts["leaks"]:
            self.leaks[self.device(leak)] += leak["bytes"]

    def device(self, entry: dict[str, Any]) -> str:
        return str(self.facts["devices"][entry["device"]]["name"])

    def column(self, name: str) -> list[int]:
        place = self.facts["columns"][name]
        values, value, shift = [], 0, 0
        for byte in self._columns[place["offset"]:place["offset"] + place["bytes"]]:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                values.append(value)
                value = shift = 0
        assert len(values) == place["count"]
        return values

    def held(self) -> dict[str, int]:
        """The bytes that each device holds at the end."""
        last = dict(zip(self.column("hold_resource"), self.column("hold_bytes"), strict=True))
        held: collections.Counter[str] = collections.Counter()
        for resource, size in last.items():
            held[self.device(self.facts["resources"][resource])] += size
        return held


@pytest.fixture
def recording(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A recording with tags, ranges, copies, launches, waits and blocks that are not freed."""
    path = tmp_path / "run.trace"
    device = tern.open_device("sim:0")
    other = tern.open_device("host")
    pool = tern.Pool(device, limit_bytes=4 << 20)
    chosen = random.Random(3)
    early = tern.Buffer(5000, "uint8", device=other, tag="early").fill(0)
    trace.start(path)
    with trace.Range("all"):
        first, second = device.stream("first"), device.stream("second")
        kept = [tern.Buffer(chosen.randrange(1, 100_000), "uint8", device=where, tag=tag).fill(1)
                for where in (device, other) for tag in ("weights", "grüße", None) for _ in range(3)]
        for step in range(5):
            with trace.Range(f"step {step}"):
                scratch = tern.Buffer(chosen.randrange(1, 1_000_000), "uint8", device=device, tag="scratch")
                scratch.fill(2)
                first.wait(second)
                second.synchronize()
                blocks = [tern.Buffer(chosen.randrange(1, 100_000), "uint8", device=device, resource=pool).fill(3)
                          for _ in range(10)]
                with pytest.raises(tern.OutOfMemoryError):
                    tern.Buffer(16 << 20, "uint8", device=device, resource=pool, tag="too large").fill(4)
                del scratch, blocks
        del early
    trace.stop()
    yield path
    del kept


def live_over_time(entries: list[dict[str, Any]], segments: list[dict[str, Any]]) -> Iterator[int]:
    """Walks back through the events of a device as PyTorch's viewer does, and checks that every block is in a
    segment. Yields the live bytes before each event, the last one first."""
    mapped = {segment["address"]: segment["total_size"] for segment in segments}
    live = {block["address"]: block["size"] for segment in segments for block in segment["blocks"]
            if block["state"] in ACTIVE}
    for entry in reversed(entries):
        for address, size in live.items():
            assert any(start <= address and address + size <= start + total for start, total in mapped.items())
        action = entry["action"]
        if action == "alloc":
            assert live.pop(entry["addr"]) == entry["size"]
        elif action == "free_completed":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif action == "free_requested":
            assert entry["addr"] in live
        elif action == "segment_alloc":
            assert mapped.pop(entry["addr"]) == entry["size"]
        elif action == "segment_free":
            assert entry["addr"] not in mapped
            mapped[entry["addr"]] = entry["size"]
        yield sum(live.values())


def test_a_snapshot_is_consistent(recording: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run_tool("convert", recording, tmp_path / "run.pickle")
    report = Report(recording, tmp_path)
    written = (tmp_path / "run.pickle").read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(written)} <= OPCODES
    snapshot = pickle.loads(written)
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    names = snapshot["tern_devices"]
    assert set(report.peaks) <= set(names)
    for index, entries in enumerate(snapshot["device_traces"]):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == index]
        live = list(live_over_time(entries, segments))
        assert sum(segment["allocated_size"] for segment in segments) == report.leaks[names[index]]
        if live:
            assert max(live) == report.peaks[names[index]]
        times = [entry["time_us"] for entry in entries]
        assert times == sorted(times)
        # If a snapshot has categories, the viewer in the browser needs a category named "unknown".
        categories = {entry["category"] for entry in entries}
        assert not categories or "unknown" in categories
    frames = [entry["frames"] for entries in snapshot["device_traces"] for entry in entries
              if entry["action"] == "alloc"]
    assert any("test_formats.py" in frame["filename"] for stack in frames for frame in stack)


def test_a_snapshot_is_reported_like_the_recording(recording: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run_tool("convert", recording, tmp_path / "run.pickle")
    run_tool("convert", tmp_path / "run.pickle", tmp_path / "back.trace")
    whole, read = Report(recording, tmp_path), Report(tmp_path / "run.pickle", tmp_path)
    assert read.peaks == whole.peaks
    assert read.leaks == whole.leaks
    again = Report(tmp_path / "back.trace", tmp_path)
    assert (again.peaks, again.leaks) == (whole.peaks, whole.leaks)
    assert {"weights", "grüße", "scratch"} <= set(again.facts["tags"])


def test_pytorch_shows_a_snapshot(recording: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="this torch has no viewer of snapshots")
    path = tmp_path / "run.pickle"
    run_tool("convert", recording, path)
    snapshot = pickle.loads(path.read_bytes())
    # Run the viewer as its users do: as a command.
    for action in ("trace", "stats"):
        run = subprocess.run([sys.executable, viz.__file__, action, str(path)], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert "cudaMalloc(" in run.stdout if action == "trace" else "total_reserved" in run.stdout
    for action in ("trace_plot", "segment_plot"):
        if hasattr(viz, action):
            page = tmp_path / f"{action}.html"
            subprocess.run([sys.executable, viz.__file__, action, str(path), "-o", str(page)], check=True)
            assert "MemoryViz.js" in page.read_text()
    # Flame graphs are drawn by a script from a network, so this is what the script would get.
    for lines in (viz.segments(snapshot, format_flamegraph=str), viz.memory(snapshot, format_flamegraph=str)):
        assert "active_allocated;test_formats.py:" in lines
        assert lines.count("weights ") > 0
    assert "only_after" in viz.compare([], snapshot["segments"], format_flamegraph=str)


def snapshot_of_pytorch() -> dict[str, Any]:
    """A snapshot as torch.cuda.memory._snapshot() returns it, with values that Tern does not read."""
    frames = [{"filename": "/p/site-packages/torch/nn/linear.py", "line": 9, "name": "forward"},
              {"filename": "model.py", "line": 42, "name": "forward", "fx_node_op": "call_function"}]
    blocks = [{"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": frames},
              {"address": 5120, "size": 3072, "requested_size": 0, "state": "inactive", "frames": []}]
    segment = {"device": 0, "address": 4096, "total_size": 4096, "allocated_size": 1024, "active_size": 1024,
               "requested_size": 1000, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
               "is_expandable": False, "frames": [], "blocks": blocks}
    event = {"stream": 0, "frames": frames, "time_us": 1_700_000_000_000_000, "compile_context": "N/A"}
    events = [{"action": "segment_alloc", "addr": 4096, "size": 4096, **event},
              {"action": "alloc", "addr": 4096, "size": 1000, "user_metadata": "weights", **event},
              {"action": "alloc", "addr": 5120, "size": 2000, **event},
              {"action": "free_requested", "addr": 5120, "size": 2000, **event},
              {"action": "free_completed", "addr": 5120, "size": 2000, **event},
              {"action": "oom", "device_free": 7, "size": 2**40, **event}]
    return {"segments": [segment], "device_traces": [events, []], "external_annotations": [],
            "allocator_settings": {"garbage_collection_threshold": 0.0, "max_split_size": -1, "huge": 2**80,
                                   "expandable_segments": False, "none": None}}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_are_read(protocol: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot_of_pytorch(), protocol))
    text = run_tool("report", path)
    assert "cuda:0: at 0 ns, 2.9 KiB were live of 4.0 KiB held" in text
    assert "model.py:42" in text
    assert "model.py:42 requested 1.0 TiB without a tag and was refused" in text
    assert "1000 B        1  cuda:0       weights" in text


def test_pytorch_on_a_gpu_agrees(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    before = [torch.ones(1000, device="cuda") for _ in range(5)]
    torch.cuda.memory._record_memory_history(max_entries=200)
    try:
        kept = []
        for step in range(100):
            kept.append(torch.ones(100 + 1000 * step, device="cuda"))
            if step % 3 == 0:
                del kept[step % len(kept)]
        del before[2]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        path = tmp_path / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        live = torch.cuda.memory_stats()["requested_bytes.all.current"]
        held = torch.cuda.memory_reserved()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    report = Report(path, tmp_path)
    assert sum(report.leaks.values()) == live
    assert sum(report.held().values()) == held
    assert report.facts["refusals"][0]["bytes"] == 1 << 50
    assert any("test_formats.py:" in site for site in report.facts["sites"])
    del kept, before


def messages_of(message: Any) -> list[Any]:
    """A message, and all messages inside it."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            try:
                inner = list(value)
            except TypeError:
                inner = [value]
            for one in inner:
                found += messages_of(one)
    return found


def test_perfetto_reads_every_packet(recording: pathlib.Path, tmp_path: pathlib.Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed")
    unknown = pytest.importorskip("google.protobuf.unknown_fields", reason="protobuf is not installed")
    path = tmp_path / "run.pftrace"
    run_tool("convert", recording, path)
    parsed = protos.Trace()
    parsed.ParseFromString(path.read_bytes())
    for packet in parsed.packet:
        for message in messages_of(packet):
            assert len(unknown.UnknownFieldSet(message)) == 0, message
    tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in parsed.packet
              if packet.HasField("track_descriptor")}
    assert all(track.parent_uuid == 0 or track.parent_uuid in tracks for track in tracks.values())
    names: dict[int, str] = {}
    counters: dict[int, list[int]] = collections.defaultdict(list)
    depths: collections.Counter[int] = collections.Counter()
    times: dict[int, int] = {}
    slices: collections.Counter[str] = collections.Counter()
    begun, ended = [], []
    for packet in parsed.packet:
        names |= {one.iid: one.name for one in packet.interned_data.event_names}
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks
        assert packet.timestamp >= times.get(event.track_uuid, 0)
        times[event.track_uuid] = packet.timestamp
        if event.type == event.TYPE_COUNTER:
            assert tracks[event.track_uuid].HasField("counter")
            counters[event.track_uuid].append(event.counter_value)
        elif event.type == event.TYPE_SLICE_END:
            depths[event.track_uuid] -= 1
            assert depths[event.track_uuid] >= 0
        else:
            slices[names[event.name_iid]] += 1
            depths[event.track_uuid] += event.type == event.TYPE_SLICE_BEGIN
            begun += event.flow_ids
            ended += event.terminating_flow_ids
    assert not any(depths.values())
    assert slices["all"] == 1
    assert all(slices[f"step {step}"] == 1 for step in range(5))
    assert slices["wait for second"] >= 5
    assert len(begun) >= 5
    assert sorted(begun) == sorted(ended) == sorted(set(begun))
    report = Report(recording, tmp_path)
    device_of = {uuid: tracks[track.parent_uuid].name for uuid, track in tracks.items() if track.HasField("counter")}
    live = {device_of[uuid]: values for uuid, values in counters.items() if tracks[uuid].name == "live"}
    held = {device_of[uuid]: values for uuid, values in counters.items() if tracks[uuid].name == "held"}
    assert {device: values[-1] for device, values in live.items()} == {device: report.leaks[device] for device in live}
    assert {device: max(values) for device, values in live.items()} == report.peaks
    assert {device: values[-1] for device, values in held.items()} == report.held()
    by_tag: collections.Counter[str] = collections.Counter()
    for uuid, values in counters.items():
        if tracks[uuid].name.startswith("live: "):
            by_tag[device_of[uuid]] += values[-1]
    assert by_tag == report.leaks
    assert {"live: weights", "live: grüße", "live: untagged"} <= {track.name for track in tracks.values()}


def test_a_log_of_rmm_has_the_same_blocks(recording: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = run_tool("convert", recording, tmp_path / "run.csv")
    assert "An RMM log does not name resources." in text
    live: dict[str, int] = {}
    refused = 0
    for line in (tmp_path / "run.csv").read_text().splitlines()[1:]:
        thread, time, action, pointer, size, stream = line.split(",")
        assert int(thread) > 0 and len(time) == len("13:36:25.466713")
        assert int(stream, 16) >= 0
        if action == "allocate":
            assert pointer not in live
            live[pointer] = int(size)
        elif action == "free":
            assert live.pop(pointer) == int(size)
        else:
            assert (action, pointer, size) == ("allocate failure", "0x0", str(16 << 20))
            refused += 1
    assert refused == 5
    report = Report(recording, tmp_path)
    assert sum(live.values()) == sum(report.leaks.values())
