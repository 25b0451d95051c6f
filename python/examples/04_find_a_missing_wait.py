"""Two streams use the same memory without an order. The simulated device finds it with every seed."""

from __future__ import annotations

import ternmem as tern


def pipeline(device: tern.Device, is_correct: bool) -> None:
    produce, consume = device.stream("produce"), device.stream("consume")
    memory = device.allocate(4096)
    produce.fill_bytes(memory, 4096, 1)
    if is_correct:
        consume.wait(produce)
    consume.fill_bytes(memory, 4096, 2)
    device.synchronize()
    device.release(memory)


def main() -> None:
    for is_correct in (False, True):
        found = 0
        for seed in range(20):
            device = tern.sim.open(seed=seed, mode="collect", print_findings=False)
            pipeline(device, is_correct)
            findings = tern.sim.findings(device)
            if findings and not found:
                print(findings[0])
            found += bool(findings)
        print(f"{'with' if is_correct else 'without'} the wait: {found} of 20 seeds report an error")
        assert found == (0 if is_correct else 20)


if __name__ == "__main__":
    main()
