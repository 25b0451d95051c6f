"""One array with a copy on the host and on a device: what is copied, and when."""

from __future__ import annotations

import numpy as np

import ternmem as tern


def main() -> None:
    device = tern.best_device()
    x = tern.UnifiedBuffer((1024, 1024), "float32", device=device, tag="x")
    with x.discard_host() as array:
        array[:] = np.random.default_rng(1).random(array.shape)
    for step in range(3):
        with x.rw_device() as lent:
            # A kernel would write lent.ptr on the stream of the lease, or a library would take lent.__dlpack__().
            print(f"step {step}: {lent}")
    print(f"mean {np.asarray(x).mean():.3f}, state {x.state.value}")
    print(f"{x.statistics['moved']['copies']} copies of {x.nbytes} bytes for three steps")
    for transfer in x.transfers:
        print(f"  {transfer['from']} to {transfer['to']}: {transfer['reason']}")


if __name__ == "__main__":
    main()
