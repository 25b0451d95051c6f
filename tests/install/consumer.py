"""A first program with an installed ternmem: the version, a unified buffer, a missing wait, the C API, an error."""

import importlib.metadata
import pathlib
import sys

import numpy as np

import ternmem as tern
from ternmem import c, sim

assert importlib.metadata.version("ternmem") == tern.__version__ == sys.argv[1], (tern.__version__, sys.argv[1])
# The test runs in a virtual environment, and must not see the tree.
assert pathlib.Path(tern.__file__).is_relative_to(sys.prefix), tern.__file__

x = tern.UnifiedBuffer(1000, "float32", device="sim")
with x.discard_host() as array:
    array[:] = np.arange(1000)
x.sync_to_device()
assert x.state is tern.BufferState.SYNCHRONIZED
assert np.asarray(x).sum() == 499500

device = tern.open_device("sim?report=quiet")
memory = tern.Buffer(256, "uint8", device)
with tern.Stream(device) as first, tern.Stream(device) as second:
    memory.fill(1, first)
    memory.fill(2, second)  # Tern orders the two streams
    second.synchronize()
assert memory.to_numpy().max() == 2
assert not sim.findings(device)

pool = c.Handle(tern.Pool("host"), "consumer")
address = c.allocate(pool, 4096)
assert c.find_block(address).bytes == 4096
c.free(address)

try:
    tern.open_device("no such device")
except tern.Error as error:
    print(f"Python, tern {tern.__version__} refuses: {error}")
