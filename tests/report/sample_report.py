"""Builds report pages from made-up traces, as tools/report/README.md specifies.

    python3 sample_report.py -o report.html --blocks 3000

The trace is a training loop. Weights and optimizer state live until the end. The forward pass
allocates activations, and the backward pass frees them. Gradients live until the optimizer step,
workspaces for one launch. A copy stream uploads batches. Each step leaks one block, and one request
is refused.
"""

import argparse
import base64
import bisect
import json
import pathlib
import random

PAGE = pathlib.Path(__file__).resolve().parents[2] / "tools/report/page"

MIB = 1 << 20
NEVER = None

BLOCK_COLUMNS = ("begin", "life", "bytes", "address", "tag", "stream", "free_stream", "site",
                 "free_site", "resource")
DELTA = {"block_begin", "hold_time", "pending_time", "copy_time", "launch_time", "wait_time",
         "call_time", "range_begin"}
ZIGZAG = {"block_address"}
KIND_COLUMNS = ("bytes", "tag", "stream", "free_stream", "site", "free_site", "resource")

HOSTILE_TAG = "</script><script>window.attacked = 'tag'</script>"
HOSTILE_SITE = "<img src=x onerror=\"window.attacked = 'site'\">"
HOSTILE_NOTE = "<!--<script><b>note</b>"

TAGS = ("untagged", "weights", "optimizer state", "gradients", "attention activations",
        "mlp activations", "workspace", "batch", "metrics", "checkpoint staging", "embeddings",
        "loss", "evaluation")
SITES = ("unknown", "src/model.cpp:88 in Model::Model", "src/optimizer.cpp:41 in Adam::Adam",
         "src/attention.cpp:132 in Attention::forward", "src/mlp.cpp:77 in Mlp::forward",
         "src/attention.cpp:210 in Attention::backward", "src/mlp.cpp:118 in Mlp::backward",
         "src/gemm.cpp:54 in gemm", "src/loader.cpp:63 in Loader::next",
         "src/metrics.cpp:29 in Metrics::record", "src/checkpoint.cpp:90 in Checkpoint::save",
         "src/optimizer.cpp:96 in Adam::step", "src/loss.cpp:35 in cross_entropy",
         "src/evaluate.cpp:51 in evaluate", "src/train.cpp:140 in train")
KERNELS = ("attention_forward", "mlp_forward", "attention_backward", "mlp_backward", "adam",
           "step", "forward", "backward", "optimizer", "checkpoint")
HOST, COMPUTE, COPY = 0, 1, 2
PINNED, POOL, WORKSPACE = 0, 1, 2
GPU = 1  # among the devices


class Arena:
    """Addresses of one resource: the first free range that fits, otherwise the arena grows."""

    def __init__(self, base, segment):
        self.base, self.segment = base, segment
        self.used, self.held = 0, 0
        self.begins, self.ends = [], []  # free ranges, sorted, no two of them adjacent

    def allocate(self, size):
        size = -(-size // 256) * 256
        for at, begin in enumerate(self.begins):
            if self.ends[at] - begin >= size:
                self.begins[at] += size
                if self.begins[at] == self.ends[at]:
                    del self.begins[at], self.ends[at]
                return begin
        self.used += size
        return self.base + self.used - size

    def free(self, begin, size):
        end = begin + -(-size // 256) * 256
        at = bisect.bisect(self.begins, begin)
        if at < len(self.begins) and self.begins[at] == end:
            end = self.ends[at]
            del self.begins[at], self.ends[at]
        if at > 0 and self.ends[at - 1] == begin:
            self.ends[at - 1] = end
        else:
            self.begins.insert(at, begin)
            self.ends.insert(at, end)

    def grow(self):
        """Returns the bytes held if they changed, otherwise None."""
        if self.used <= self.held:
            return None
        self.held = -(-self.used // self.segment) * self.segment
        return self.held


class Sample:
    """A trace as lists: a row for each block, copy, launch, wait and range."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now = 0
        self.blocks, self.holds, self.copies = [], [], []
        self.pending, self.pending_bytes = [], 0
        self.launches, self.waits, self.calls, self.ranges = [], [], [], []
        self.arenas = [Arena(0x7E10_0000_0000, 64 * MIB), Arena(0x7F40_0000_0000, 256 * MIB),
                       Arena(0x7F42_4000_0000, 32 * MIB)]
        self.facts = {}

    def pass_time(self, least, most):
        self.now += self.random.randrange(least, most)

    def allocate(self, size, tag, site, resource=POOL, stream=COMPUTE):
        arena = self.arenas[resource]
        # In the order of BLOCK_COLUMNS: lists are faster to build than dicts.
        block = [self.now, NEVER, size, arena.allocate(size), tag, stream, 0, site, 0, resource]
        self.blocks.append(block)
        held = arena.grow()
        if held is not None:
            self.holds.append((self.now, resource, held))
        self.pass_time(200, 1800)
        return block

    def free(self, block, site, stream=COMPUTE):
        block[1] = self.now - block[0]
        block[6], block[8] = stream, site
        self.arenas[block[9]].free(block[3], block[2])
        if block[9] != PINNED:
            # The stream is seen to pass its frees from time to time.
            self.pending_bytes = 0 if len(self.pending) % 10 == 9 else self.pending_bytes + block[2]
            self.pending.append((self.now, GPU, self.pending_bytes))
        self.pass_time(200, 1200)

    def scratch(self, size, site, kernel, took):
        """A workspace around one launch, and the small blocks that a launch needs."""
        block = self.allocate(size, 6, site, WORKSPACE)
        small = [self.allocate(256 << self.random.randrange(7), 0, 7) for _ in range(5)]
        self.launches.append((self.now, COMPUTE, kernel, site))
        self.pass_time(took, 2 * took)
        for temporary in small:
            self.free(temporary, 7)
        self.free(block, site)

    def copy(self, size, direction, stream, site, tag, rate=24):
        took = int(size / rate) + 2000
        self.copies.append((self.now, took + 1, size, direction, stream, site, tag))
        return took

    def live_at(self, time, device=None):
        """Live bytes at a time: the model that the page is compared with."""
        resources = [at for at, entry in enumerate(self.facts["resources"])
                     if device is None or entry["device"] == device]
        return sum(block[2] for block in self.blocks if block[9] in resources
                   and block[0] <= time and (block[1] is NEVER or time < block[0] + block[1]))


def train(sample, blocks, layers):
    """Runs the loop until there are about as many blocks as asked for."""
    stays = [sample.allocate(12 * MIB + 256 * 1024 * layer, 1, 1) for layer in range(layers)]
    stays.append(sample.allocate(160 * MIB, 10, 1))
    stays += [sample.allocate(24 * MIB, 2, 2) for _ in range(layers)]
    sample.pass_time(500_000, 900_000)
    per_step = layers * 54 + 6
    steps = max(4, (blocks - len(stays)) // per_step)
    for step in range(steps):
        run_step(sample, step, steps, layers)
    while len(sample.blocks) < blocks - 1:
        sample.scratch(MIB, 7, 0, 2000)
    for block in stays:
        sample.free(block, 14)
    sample.pass_time(100_000, 200_000)


def run_step(sample, step, steps, layers):
    begin = sample.now
    scale = 1.7 if step == steps * 2 // 3 else 0.8 + 0.4 * ((step * 37 % 11) / 11)
    staging = sample.allocate(int(24 * MIB * scale), 7, 8, PINNED, HOST)
    batch = sample.allocate(int(24 * MIB * scale), 7, 8, POOL, COPY)
    took = sample.copy(batch[2], 0, COPY, 8, 7)
    sample.waits.append((sample.now + took, 0, COMPUTE, COPY, 8))
    sample.pass_time(took // 2, took)
    forward_begin = sample.now
    activations = [run_forward(sample, layer, scale) for layer in range(layers)]
    loss = sample.allocate(2 * MIB, 11, 12)
    backward_begin = sample.now
    gradients = []
    for layer in reversed(range(layers)):
        gradients += run_backward(sample, activations[layer])
        if step == steps * 2 // 3 and layer == layers // 2:
            refuse(sample)
    optimizer_begin = sample.now
    for gradient in gradients:
        sample.launches.append((sample.now, COMPUTE, 4, 11))
        sample.pass_time(10_000, 20_000)
        sample.free(gradient, 11)
    read_loss(sample, loss)
    sample.allocate(96 * 1024 * (1 + step % 3), 8, 9)
    if step % 4 == 3:
        save_checkpoint(sample, step)
    sample.free(loss, 12)
    sample.free(batch, 8)
    sample.free(staging, 8, HOST)
    for name, first, last, depth in (("step", begin, sample.now, 0),
                                     ("forward", forward_begin, backward_begin, 1),
                                     ("backward", backward_begin, optimizer_begin, 1),
                                     ("optimizer", optimizer_begin, sample.now, 1)):
        sample.ranges.append((first, last - first, depth, 1, KERNELS.index(name)))
    sample.pass_time(100_000, 300_000)


def run_forward(sample, layer, scale):
    kept = []
    for tag, site, kernel, size in ((4, 3, 0, 14), (5, 4, 1, 22)):
        kept.append(sample.allocate(int(size * scale * MIB) + 4096 * (layer % 5), tag, site))
        kept.append(sample.allocate(int(6 * scale * MIB), tag, site))
        for part in range(2):
            sample.scratch(MIB * (2 + 3 * part), 7, kernel, 40_000)
    return kept


def run_backward(sample, activations):
    gradients = []
    for tag, site, kernel in ((5, 6, 3), (4, 5, 2)):
        gradients.append(sample.allocate(6 * MIB, 3, site))
        for part in range(2):
            sample.scratch(MIB * (3 + 4 * part), 7, kernel, 70_000)
        for block in [block for block in activations if block[4] == tag]:
            sample.free(block, site)
    return gradients


def read_loss(sample, loss):
    begin = sample.now
    took = sample.copy(loss[2], 1, COMPUTE, 12, 11)
    sample.pass_time(took, took + 1000)
    sample.waits.append((begin, sample.now - begin, HOST, COMPUTE, 14))


def save_checkpoint(sample, step):
    begin = sample.now
    staging = sample.allocate(48 * MIB, 9, 10, PINNED, HOST)
    sample.waits.append((sample.now, 0, COPY, COMPUTE, 10))
    took = 0
    for _ in range(3):
        took = sample.copy(16 * MIB, 1, COPY, 10, 1, rate=20)
        sample.now += took
    sample.waits.append((begin, sample.now - begin, HOST, COPY, 10))
    # A function of the host writes the file. The program sees only the first one end.
    sample.calls.append((sample.now, 0 if step > 4 else 400_001, COPY, 10))
    sample.free(staging, 10, HOST)
    sample.ranges.append((begin, sample.now - begin, 2, 1, KERNELS.index("checkpoint")))


def refuse(sample):
    sample.facts["refusals"] = [{
        "time": sample.now, "device": 1, "resource": POOL, "bytes": 1536 * MIB, "tag": 12,
        "site": 13, "stream": COMPUTE, "error": "out_of_memory", "pending": 0,
        "largest_free": 96 * MIB, "limit": 2048 * MIB, "backing": "segments",
        "is_served_later": False}]
    sample.pass_time(5_000, 9_000)


def sums(sample, blocks, keys):
    """[{key: ..., bytes, blocks}] of some blocks, largest first."""
    found = {}
    for block in blocks:
        name = tuple(block[BLOCK_COLUMNS.index(key)] for key in keys)
        known = found.setdefault(name, [0, 0])
        known[0] += block[2]
        known[1] += 1
    rows = [dict(zip(keys, name), bytes=size, blocks=count)
            for name, (size, count) in found.items()]
    return sorted(rows, key=lambda row: -row["bytes"])


def live_blocks(sample, time, device):
    return [block for block in sample.blocks
            if sample.facts["resources"][block[9]]["device"] == device
            and block[0] <= time and (block[1] is NEVER or time < block[0] + block[1])]


def held_at(sample, time, device):
    latest = {resource: held for at, resource, held in sample.holds
              if at <= time and sample.facts["resources"][resource]["device"] == device}
    return sum(latest.values())


def find_peak(sample, device):
    changes = []
    for block in sample.blocks:
        if sample.facts["resources"][block[9]]["device"] == device:
            changes.append((block[0], block[2]))
            if block[1] is not NEVER:
                changes.append((block[0] + block[1], -block[2]))
    changes.sort()
    best, best_time, live = 0, 0, 0
    for time, change in changes:
        live += change
        if live > best:
            best, best_time = live, time
    held = held_at(sample, best_time, device)
    tags = sums(sample, live_blocks(sample, best_time, device), ["tag"])
    names = sample.facts["tags"]
    named = ", ".join(f"{row['bytes'] / MIB:.1f} MiB '{names[row['tag']]}'" for row in tags[:3])
    device_name = sample.facts["devices"][device]["name"]
    return {"device": device, "time": best_time, "live": best, "held": held, "tags": tags,
            "sites": sums(sample, live_blocks(sample, best_time, device), ["site", "tag"]),
            "text": f"At the peak of {device_name}, {best_time / 1e6:.1f} ms into the trace, "
                    f"{best / MIB:.1f} MiB were live and {held / MIB:.1f} MiB held: {named}."}


def transfers(sample):
    found = {}
    for _, took, size, direction, *_ in sample.copies:
        row = found.setdefault(direction, {"direction": direction, "calls": 0, "bytes": 0,
                                           "busy": 0, "timed_bytes": 0})
        row["calls"] += 1
        row["bytes"] += size
        row["busy"] += took - 1
        row["timed_bytes"] += size
    return [found[direction] for direction in sorted(found)]


def wait_sums(sample):
    found = {}
    for _, took, stream, source, site in sample.waits:
        row = found.setdefault((stream, source), {"stream": stream, "for": source, "calls": 0,
                                                  "took": 0, "site": site})
        row["calls"] += 1
        row["took"] += took
    return sorted(found.values(), key=lambda row: -row["took"])


def build(blocks=3000, layers=8, hostile=False, seed=7):
    """Returns a Sample with about `blocks` blocks."""
    sample = Sample(seed)
    sample.facts = {
        "title": "train.tern", "program": "train", "process": 4242,
        "started": "2025-03-14T09:26:53Z", "lost": 0, "is_complete": True, "notes": [],
        "devices": [{"name": "host", "is_host": True}, {"name": "cuda:0", "is_host": False}],
        "resources": [{"name": "pinned", "device": 0}, {"name": "pool", "device": 1},
                      {"name": "workspace", "device": 1}],
        "tags": list(TAGS), "sites": list(SITES), "kernels": list(KERNELS),
        "streams": [{"name": "host", "device": 0}, {"name": "compute", "device": 1},
                    {"name": "copy", "device": 1}],
        "refusals": [],
        "findings": [{"kind": "keeps growing", "device": 1, "time": 1 << 40, "mode": "tag",
                      "is_whole": True, "line": {"tag": 8, "site": 9},
                      "text": "cuda:0: memory that src/metrics.cpp:29 allocates keeps growing.",
                      "advice": "Free the blocks."},
                     {"kind": "blocked reuse", "device": 1, "time": 2_000_000, "mode": "state",
                      "is_whole": False, "line": {"tag": 7, "site": 8},
                      "text": "cuda:0: memory freed on stream 'copy' could not be reused.",
                      "advice": "Let the stream wait for less."}],
        "held_peaks": [{"device": 1, "time": 3_000_000, "text": "cuda:0: pools held the most."}],
        "growing": [{"device": 1, "tag": 8, "site": 9, "growth": 7 * MIB, "first": MIB, "bytes": 8 * MIB,
                     "floors": [at * MIB for at in range(8)], "blocks": 40, "kept": 40}],
        "blocked": [{"time": 2_000_000, "times": 3, "grown": 64 * MIB, "pending": 48 * MIB,
                     "device": 1, "tag": 7, "site": 8, "stream": COPY, "freed_tag": 7, "freed_site": 8,
                     "free_site": 14}],
        "moves": [{"reason": "device_read", "calls": 7, "bytes": 42 * MIB}],
        "evictions": [{"tag": 10, "site": 13, "calls": 5, "sum": 30 * MIB}],
        "kept_copies": [{"tag": 10, "site": 13, "times": 2, "bytes": 6 * MIB}],
        "checker_findings": [],
        "budgets": [{"path": "process", "count": 1, "highest": 96 * MIB, "limit": None, "time": 3_000_000,
                     "waits": 0, "waited": 0, "refused": 0},
                    {"path": HOSTILE_TAG if hostile else "process/task", "count": 4, "highest": 48 * MIB,
                     "limit": 64 * MIB, "time": 2_000_000, "waits": 17, "waited": 6_000_000,
                     "refused": 23}],
        "budget_waits": [{"tag": 9, "site": 10, "calls": 2, "sum": 5_000_000}]}
    train(sample, blocks, layers)
    facts = sample.facts
    if hostile:
        facts["tags"][5], facts["sites"][4] = HOSTILE_TAG, HOSTILE_SITE
        facts["streams"][2]["name"] = facts["kernels"][0] = HOSTILE_TAG
        facts["title"] = facts["program"] = HOSTILE_SITE
        facts["notes"] = [HOSTILE_NOTE]
        facts["findings"][0]["text"] = HOSTILE_TAG
        facts["lost"] = 12
    facts["duration"] = sample.now
    facts["events"] = (len(sample.blocks) + sum(block[1] is not NEVER for block in sample.blocks)
                       + len(sample.copies) + len(sample.launches) + len(sample.waits))
    for name in ("copies", "launches", "waits", "calls", "ranges"):
        getattr(sample, name).sort(key=lambda row: row[0])
    facts["peaks"] = [find_peak(sample, device) for device in (1, 0)]
    for refusal in facts["refusals"]:
        refusal["live"] = sample.live_at(refusal["time"], 1)
        refusal["held"] = held_at(sample, refusal["time"], 1)
        refusal["tags"] = sums(sample, live_blocks(sample, refusal["time"], 1), ["tag"])
    leaks = [block for block in sample.blocks if block[1] is NEVER]
    facts["leaks"] = [dict(row, device=1) for row in sums(sample, leaks, ["tag", "site"])]
    facts["refused"] = len(facts["refusals"])
    facts["served_later"] = sum(one["is_served_later"] for one in facts["refusals"])
    facts["transfers"] = transfers(sample)
    facts["wait_sums"] = wait_sums(sample)
    return sample


def compare(before, after):
    """Returns a comparison of two samples. Its rows are made up."""
    peaks = [sample.facts["peaks"][0]["live"] for sample in (before, after)]
    def row(site, tag, sizes, site_before=""):
        return {"device": "cuda:0", "tag": tag, "site": site, "site_before": site_before,
                "bytes": sizes, "blocks": [1, 2], "allocations": [10, 20]}
    return {
        "titles": [f"before {before.facts['title']}", after.facts["title"]],
        "devices": [{"name": "cuda:0", "live": peaks, "held": peaks,
                     "text": f"cuda:0: the peak grew. {after.facts['tags'][5]}"},
                    {"name": "host", "live": [0, MIB], "held": [0, MIB], "text": "host: it grew."}],
        "figures": [{"name": "duration", "unit": "ns",
                     "value": [before.facts["duration"], after.facts["duration"]]},
                    {"name": "evicted", "unit": "bytes", "value": [0, 2 * MIB]},
                    {"name": "refused requests", "unit": "count", "value": [0, 0]}],
        "tags": [row("", after.facts["tags"][5], [0, 128 * MIB])],
        "lines": [row("src/new.cpp:9", "batch", [128 * MIB, 64 * MIB], "src/new.cpp:7")],
        "leaks": [],
        "transfers": [{"direction": "host to device", "calls": [1, 2], "bytes": [MIB, 2 * MIB]}]}


def empty():
    """Returns a Sample in which nothing happened."""
    sample = Sample(0)
    sample.facts = {
        "title": "empty.tern", "program": "idle", "process": 1, "started": "2025-03-14T09:26:53Z",
        "duration": 0, "events": 0, "lost": 0, "is_complete": True, "notes": [],
        "devices": [{"name": "host"}], "resources": [], "tags": ["untagged"],
        "sites": ["unknown"], "kernels": [], "streams": [{"name": "host", "device": 0}],
        "peaks": [], "refusals": [], "leaks": [], "transfers": [], "findings": [], "growing": [],
        "blocked": [], "held_peaks": [], "moves": [], "evictions": [], "kept_copies": [],
        "checker_findings": [], "budgets": [], "budget_waits": [], "wait_sums": [],
        "refused": 0, "served_later": 0}
    return sample


def columns_of(sample):
    """{name: values}, not yet as differences."""
    columns = {f"block_{name}": [block[at] for block in sample.blocks]
               for at, name in enumerate(BLOCK_COLUMNS) if name not in KIND_COLUMNS}
    places = [BLOCK_COLUMNS.index(name) for name in KIND_COLUMNS]
    kinds = {}
    columns["block_kind"] = [kinds.setdefault(tuple(block[at] for at in places), len(kinds))
                             for block in sample.blocks]
    for at, name in enumerate(KIND_COLUMNS):
        columns[f"kind_{name}"] = [kind[at] for kind in kinds]
    columns["block_life"] = [0 if life is NEVER else life + 1 for life in columns["block_life"]]
    columns["block_address"] = [address // 256 for address in columns["block_address"]]
    for rows, names in (
            (sample.holds, ("hold_time", "hold_resource", "hold_bytes")),
            (sample.pending[-8192:], ("pending_time", "pending_device", "pending_bytes")),
            (sample.copies, ("copy_time", "copy_took", "copy_bytes", "copy_direction",
                             "copy_stream", "copy_site", "copy_tag")),
            (sample.launches, ("launch_time", "launch_stream", "launch_kernel", "launch_site")),
            (sample.waits, ("wait_time", "wait_took", "wait_stream", "wait_for", "wait_site")),
            (sample.calls, ("call_time", "call_took", "call_stream", "call_site")),
            (sample.ranges, ("range_begin", "range_took", "range_depth", "range_thread",
                             "range_name"))):
        for at, name in enumerate(names):
            columns[name] = [row[at] for row in rows]
    return columns


def differences(name, values):
    before = [0] + values[:-1]
    if name in DELTA:
        return [value - last for value, last in zip(values, before)]
    if name in ZIGZAG:
        return [2 * (value - last) if value >= last else 2 * (last - value) - 1
                for value, last in zip(values, before)]
    return values


def varints(values):
    out = bytearray()
    append = out.append
    for value in values:
        while value > 127:
            append(value & 127 | 128)
            value >>= 7
        append(value)
    return out


def encode(columns):
    """Returns the bytes of all columns, and where each one is."""
    data, places = bytearray(), {}
    for name, values in columns.items():
        encoded = varints(differences(name, values))
        places[name] = {"offset": len(data), "bytes": len(encoded), "count": len(values)}
        data += encoded
    return bytes(data), places


def scripts():
    """Returns the program of the page: its files in the order in which the build joins them."""
    names = (PAGE / "scripts.txt").read_text().split()
    return "".join((PAGE / name).read_text() for name in names)


def script_json(value):
    return json.dumps(value).replace("<", "\\u003c")


def data_of(sample):
    """Returns the facts and the columns of a trace, as they are in a page."""
    data, places = encode(columns_of(sample))
    return (script_json(dict(sample.facts, columns=places)), base64.b64encode(data).decode())


def page(sample, before=None, comparison=None):
    """Returns the text of the page, which compares two traces if `before` is one."""
    facts, columns = data_of(sample)
    facts_before, columns_before = ("null", "") if before is None else data_of(before)
    text = (PAGE / "page.html").read_text()
    for marker, value in (("@STYLE@", (PAGE / "page.css").read_text()),
                          ("@SCRIPT@", scripts()),
                          ("@BEFORE_FACTS@", facts_before), ("@BEFORE_COLUMNS@", columns_before),
                          ("@COMPARISON@", script_json(comparison)),
                          ("@COLUMNS@", columns), ("@FACTS@", facts)):
        assert text.count(marker) == 1, f"page.html has to contain {marker} once"
        text = text.replace(marker, value)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--blocks", type=int, default=3000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hostile", action="store_true")
    options = parser.parse_args()
    sample = build(options.blocks, options.layers, options.hostile)
    pathlib.Path(options.output).write_text(page(sample))


if __name__ == "__main__":
    main()
