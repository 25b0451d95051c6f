"""A small transformer, trained with PyTorch's allocator and with Tern's memory: equal losses, time, memory.

    python python/bench/training.py [--check]

Needs a GPU. Each allocator runs in a process of its own, without and with a CUDA graph. The processes train by turns, 20 steps
each, and the best turn counts, so that all have the same conditions. With ``--check``, the program fails if
the losses differ in a bit, if a step with Tern takes longer than 1.02 times the step with PyTorch's allocator, if memory of
Tern is live at the end, or if Tern holds more memory: with enable() than PyTorch with expandable segments, and with use(), where
PyTorch requests the segments, than PyTorch without them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from typing import Any

import ternmem as tern

steps, cycle = 100, 20
batch, longest, width, heads, layers, words = 64, 256, 768, 12, 4, 8192
modes = {"torch": "torch", "expandable": "torch, expandable", "use": "tern, use()", "enable": "tern, enable()"}


def model_of(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            count, length, _ = x.shape
            parts = self.query_key_value(self.before(x)).view(count, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            scores = (query @ key.transpose(-1, -2)) * (width // heads) ** -0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ value
            x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
            return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))

    return nn.Sequential(nn.Embedding(words, width), *(Block() for _ in range(layers)), nn.LayerNorm(width), nn.Linear(width, words))


def train(torch: Any, with_graph: bool, is_enabled: bool) -> tuple[list[str], float]:
    """Train, one cycle for each line of the standard input. Return the losses as hexadecimal numbers, and the best time per step."""
    torch.manual_seed(1)
    place = torch.device("cuda", 0)
    model = model_of(torch).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=True)
    made = torch.Generator().manual_seed(2)
    texts = torch.randint(words, (cycle, batch, longest + 1), generator=made).to(place)
    # Without a graph, each step has another length, as texts have.
    lengths = [longest if with_graph else 32 * int(n) for n in torch.randint(4, longest // 32 + 1, (cycle,), generator=made)]
    losses = torch.zeros(steps, device=place)
    text, loss_of_step = texts[0].clone(), torch.zeros((), device=place)

    def step(length: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        out = model(text[:, :length])
        loss = torch.nn.functional.cross_entropy(out.reshape(-1, words), text[:, 1:length + 1].reshape(-1))
        loss.backward()
        optimizer.step()
        loss_of_step.copy_(loss.detach())

    captured = torch.cuda.CUDAGraph() if with_graph else None
    if with_graph:
        torch.cuda.graph.default_capture_stream = stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(longest)
        torch.cuda.current_stream().wait_stream(stream)
        if is_enabled:
            import ternmem.torch

            needed = ternmem.torch.rehearse(lambda: step(longest))
            with ternmem.torch.graph(captured, bytes=needed):
                step(longest)
        else:
            with torch.cuda.stream(stream):
                step(longest)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(captured):
                step(longest)

    best = float("inf")
    for first in range(0, steps, cycle):
        torch.cuda.synchronize()
        wait_for_turn()
        start = time.perf_counter()
        for i in range(cycle):
            text.copy_(texts[i])
            if captured is not None:
                captured.replay()
            else:
                step(lengths[i])
            losses[first + i] = loss_of_step
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / cycle)
    return [value.hex() for value in losses.double().tolist()], best


def wait_for_turn() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def run(mode: str, with_graph: bool) -> dict[str, Any]:
    import torch

    route: Any = contextlib.nullcontext()
    if mode in ("use", "enable"):
        import ternmem.torch

        # Under a limit a pool holds single pages: it has less memory that nothing uses after a warm-up, and moves pages
        # while sizes change.
        limit_bytes = tern.open_device("cuda:0").memory().total_bytes if with_graph else 0
        pool = tern.Pool("cuda:0", limit_bytes=limit_bytes)
        resource = tern.BudgetResource(pool, tern.Budget("training", None))
        if mode == "enable":
            ternmem.torch.enable(resource)
        else:
            route = ternmem.torch.use(resource)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.cuda.init()

    with route:
        losses, seconds = train(torch, with_graph, mode == "enable")
        gc.collect()
        torch.cuda.synchronize()
        held = torch.cuda.max_memory_reserved()
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    live = 0
    if mode in ("use", "enable"):
        ternmem.torch.empty_cache()
        held = max(held, pool.pool_statistics["peak_held_bytes"])
        live = resource.statistics["live_bytes"]
    else:
        torch.cuda.empty_cache()
        live = torch.cuda.memory_allocated()
    return {"losses": losses, "seconds": seconds, "held": held, "live": live}


def started(mode: str, with_graph: bool) -> subprocess.Popen[str]:
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if mode == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return subprocess.Popen([sys.executable, __file__, mode, "graph" if with_graph else "eager"], env=environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait(process: subprocess.Popen[str]) -> None:
    """Wait until a process has ended its turn."""
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        sys.exit(process.communicate()[1])


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Let a process train its last cycle, and return what it prints."""
    out, errors = process.communicate("go\n", timeout=120)
    if process.returncode != 0:
        sys.exit(errors)
    made: dict[str, Any] = json.loads(out.splitlines()[-1])
    return made


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(run(sys.argv[1], sys.argv[2] == "graph")))
        return
    if not any(spec.startswith("cuda:") for spec in tern.devices()):
        sys.exit("this benchmark needs a GPU of NVIDIA, and there is none.")
    wrong = []
    # All start together, because importing PyTorch takes most of the time. Then they take turns.
    processes = {(mode, with_graph): started(mode, with_graph) for with_graph in (False, True) for mode in modes}
    for process in processes.values():
        wait(process)
    for _ in range(steps // cycle - 1):
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            wait(process)
    results = {which: finished(process) for which, process in processes.items()}
    print(f"{'':<8}{'allocator':<20}{'ms per step':>12}{'ratio':>8}{'held MiB':>10}{'live':>8}  losses")
    for with_graph in (False, True):
        found = {mode: results[mode, with_graph] for mode in modes}
        own = found["torch"]
        for mode, name in modes.items():
            one = found[mode]
            ratio = one["seconds"] / own["seconds"]
            is_equal = one["losses"] == own["losses"]
            kind = "graph" if with_graph else "eager"
            print(f"{kind:<8}{name:<20}{one['seconds'] * 1e3:>12.3f}{ratio:>7.3f}x{one['held'] / 2**20:>10.0f}{one['live']:>8}  "
                  + ("equal" if is_equal else "DIFFERENT"))
            if not is_equal:
                wrong.append(f"{kind}, {name}: the losses differ.")
            if mode in ("use", "enable"):
                if ratio > 1.02:
                    wrong.append(f"{kind}, {name}: a step takes {ratio:.3f} times as long.")
                most = found["expandable" if mode == "enable" else "torch"]["held"]
                if one["held"] > most:
                    wrong.append(f"{kind}, {name}: {one['held']} bytes are held, and {most} by PyTorch's allocator.")
                if one["live"] != 0:
                    wrong.append(f"{kind}, {name}: {one['live']} bytes are live at the end.")
    if "--check" in sys.argv and wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
