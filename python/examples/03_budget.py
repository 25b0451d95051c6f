"""Two caches share a limit, and the one that asks for too much is refused."""

from __future__ import annotations

import ternmem as tern


def main() -> None:
    device = tern.best_device()
    pool = tern.Pool(device, limit_bytes=64 << 20)
    both = tern.Budget("caches", 3 << 20, overflow="fail")
    first = tern.BudgetResource(pool, tern.Budget("first", 2 << 20, parent=both, overflow="fail"))
    second = tern.BudgetResource(pool, tern.Budget("second", 2 << 20, parent=both, overflow="fail"))
    kept = [tern.Buffer(1 << 18, "float32", device, resource=resource, tag="cache").allocate()
            for resource in (first, second, first)]
    print(f"{len(kept)} buffers use {both.used_bytes} of {both.limit_bytes} bytes")
    try:
        tern.Buffer(1 << 18, "float32", device, resource=second).allocate()
    except tern.OutOfBudgetError as error:
        print(f"refused at {error.site}: {error}")
    del kept[0]
    device.synchronize()
    tern.Buffer(1 << 18, "float32", device, resource=second).allocate()
    print("after one buffer is freed, the request succeeds")


if __name__ == "__main__":
    main()
