"""Forks, threads, signals, the end of the interpreter and sub-interpreters. Most cases need a process of their own."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

import ternmem as tern


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the leak warnings of nanobind."""
    given = {**os.environ, "TERNMEM_LEAK_WARNINGS": "1", **environment}
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False,
                          timeout=60, env=given)


specs = ["host", "sim:0", "cuda:0?driver=sim"]

# --- Fork

after_fork = """
import os, sys, warnings
import numpy as np
import ternmem as tern

# Python 3.12 and newer warn at a fork of a process with threads, and devices have threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
device = tern.open_device(sys.argv[1])
unified = tern.UnifiedBuffer(100, device=device).fill(1)
unified.sync_to_device()
buffer = tern.Buffer(100, device=device).fill(1)
device.synchronize()
kept = np.asarray(unified)
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks of several threads
child = os.fork()
if child == 0:
    assert (kept == 1).all()
    uses = [lambda: buffer.fill(2), lambda: tern.Stream(device), device.synchronize, lambda: unified.read_device(),
            lambda: tern.Buffer(10, device=device).allocate()]
    for use in uses:
        try:
            use()
            os._exit(3)
        except tern.AfterForkError as error:
            assert error.code == "after_fork"
            assert "after the fork" in str(error)
    own = tern.UnifiedBuffer(10, device=tern.open_device("host")).fill(3)
    assert (own.to_numpy() == 3).all()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (buffer.to_numpy() == 1).all()
"""


@pytest.mark.parametrize("spec", specs)
def test_a_child_may_use_host_memory_and_no_device_of_its_parent(spec: str) -> None:
    ended = run(after_fork, spec)
    assert (ended.returncode, ended.stderr) == (0, "")


# --- The end of the interpreter

open_at_exit = """
import sys
import ternmem as tern

device = tern.open_device(sys.argv[1])
first = tern.UnifiedBuffer(100, device=device).fill(1)
second = tern.UnifiedBuffer(100, device=device).fill(1)
host_lease, device_lease = first.rw_host(), second.rw_device()
array, lent = host_lease.array, device_lease.array
buffer, stream = tern.Buffer(100, device=device), tern.Stream(device)
buffer.fill(1, stream)
capsule = buffer.__dlpack__(max_version=(1, 0))
cycle = [buffer]
cycle.append(cycle)
print("end")
"""


@pytest.mark.parametrize("spec", specs)
def test_a_program_may_end_with_leases_open(spec: str) -> None:
    ended = run(open_at_exit, spec, TERNMEM_LEAK_WARNINGS="1")
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr
    assert ended.stderr == ""


def test_a_program_may_end_while_threads_work() -> None:
    ended = run(
        "import threading, ternmem as tern\n"
        "buffer = tern.UnifiedBuffer(1000, device='sim').fill(1)\n"
        "def work():\n"
        "    while True:\n"
        "        with buffer.rw_host(wait=10) as array: array += 1\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
        "import time; time.sleep(0.1); print('end')\n"
    )
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr


# --- Threads


def test_eight_threads_use_one_device(device: tern.Device) -> None:
    failures: list[BaseException] = []
    shared = tern.UnifiedBuffer(256, "int64", device=device).zeros()
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            start.wait()
            with tern.Stream(device, f"worker {number}") as stream:
                for i in range(50):
                    buffer = tern.Buffer(1000, "int32", device)
                    buffer.fill(number * 100 + i, stream)
                    assert (buffer.to_numpy() == number * 100 + i).all()
                    own = tern.UnifiedBuffer(100, device=device).fill(i)
                    own.sync_to_device()
                    own.drop_host()
                    assert (own.to_numpy() == i).all()
                    with shared.rw_host(wait=60) as array:
                        array += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert (shared.to_numpy() == 400).all()


shared_by_threads = """
import random, sys, threading, time
import numpy as np
import ternmem as tern

sys.setswitchinterval(1e-5)
device = tern.open_device("host")
unified = tern.UnifiedBuffer(256, "int64", device=device).fill(1)
managed = tern.ManagedBuffer(256, "int64", device).fill(1)
array = tern.Array.zeros(16, "int64", device)
leases = [managed.rw_host()]

def use_property(i):
    random.choice([unified.free, lambda: unified.host, lambda: unified.device, lambda: unified.fill(1)])()

def resize(i):
    if i % 4 == 0: array.resize(1 + i * 997 % 65536)
    elif i % 4 == 1: array.fill(1)
    else:
        assert array.to_numpy().shape[0] <= 65536
        array.buffer.size

def close(i):
    lease = leases[0]
    [lease.close, lambda: lease.array.sum(), lambda: lease.commit(256), lambda: lease.__exit__(None, None, None)][i % 4]()
    leases[0] = [unified.rw_host, unified.read_host, managed.rw_host, unified.rw_device][i % 4]()

call = {"property": use_property, "resize": resize, "close": close}[sys.argv[1]]
end = time.perf_counter() + 2
failures = []

def work(number):
    i = number
    while time.perf_counter() < end:
        i += 1
        try: call(i)
        except (tern.Error, AttributeError): pass
        except BaseException as error: failures.append(error)

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
leases.clear()
assert not failures, failures[0]
assert (unified.fill(5).to_numpy() == 5).all()
"""


@pytest.mark.parametrize("what", ["property", "resize", "close"])
def test_eight_threads_use_one_object(what: str) -> None:
    ended = run(shared_by_threads, what)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_wait_lets_other_threads_run() -> None:
    device = tern.sim.open(seed=1, mode="collect", print_findings=False)
    stream = device.stream("held")
    buffer = tern.Buffer(100, device=device)
    hold = tern.sim.hold(stream)
    buffer.fill(1, stream)
    waiting = threading.Thread(target=buffer.to_numpy)
    waiting.start()
    start = time.perf_counter()
    for _ in range(1000):
        tern.Buffer(10, device="host")
    assert time.perf_counter() - start < 5
    assert waiting.is_alive()
    tern.sim.resume(device, hold)
    waiting.join(10)
    assert not waiting.is_alive()


# --- Sub-interpreters


def test_a_sub_interpreter_is_refused() -> None:
    ended = run(
        "try: import _interpreters as interpreters\n"
        "except ImportError: import _xxsubinterpreters as interpreters\n"
        "import ternmem\n"
        "made = interpreters.create()\n"
        "code = '''\n"
        "try:\n"
        "    import ternmem\n"
        "except ImportError as error:\n"
        "    print(error, flush=True)\n"
        "'''\n"
        "interpreters.run_string(made, code)\n"
    )
    assert "main interpreter only" in ended.stdout or "does not support loading in subinterpreters" in ended.stdout, ended


# --- Ctrl-C

interrupted = """
import os, signal, sys, threading, time
import ternmem as tern

device = tern.sim.open(seed=1, mode="collect", print_findings=False)
stream = device.stream("held")
buffer, unified = tern.Buffer(10, device=device), tern.UnifiedBuffer(10, device=device).fill(1)
unified.sync_to_device()
device.synchronize()
hold = tern.sim.hold(stream)
buffer.fill(1, stream)
unified.fill(2, stream)
event = tern.Event(device)
stream.record(event)
leased = tern.UnifiedBuffer(10, device="host").fill(1)
leases = []
other = threading.Thread(target=lambda: leases.append(leased.rw_host()))
other.start()
other.join()
waits = {
    "stream": stream.synchronize, "mark": stream.mark().wait, "event": event.synchronize, "device": device.synchronize,
    "buffer": buffer.synchronize, "to_numpy": buffer.to_numpy, "copy_from": lambda: buffer.copy_from([0.0] * 10),
    "unified": unified.wait, "read_host": unified.read_host, "host": lambda: unified.host, "lease": lambda: leased.rw_host(60),
}
sent = []
def interrupt():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.2, interrupt).start()
try:
    waits[sys.argv[1]]()
    print("returned")
except KeyboardInterrupt:
    print("interrupted", "promptly" if time.perf_counter() - sent[0] < 1 else "late")
tern.sim.resume(device, hold)
device.synchronize()
assert (buffer.to_numpy() == 1).all(), "the work goes on"
"""


@pytest.mark.parametrize("wait", ["stream", "mark", "event", "device", "buffer", "to_numpy", "copy_from", "unified", "read_host",
                                  "host", "lease"])
def test_ctrl_c_ends_a_wait(wait: str) -> None:
    ended = run(interrupted, wait)
    assert (ended.returncode, ended.stdout) == (0, "interrupted promptly\n"), ended.stderr


# --- Leaks


def test_a_tracking_resource_names_the_line_of_a_leak() -> None:
    resource = tern.TrackingResource(tern.Pool("sim", limit_bytes=4 << 20))
    kept = tern.Buffer(100, resource=resource, tag="kept").allocate()
    (block,) = resource.live_blocks()
    assert block["bytes"] == 400
    assert block["tag"] == "kept"
    assert str(block["site"]).startswith(__file__)
    assert "kept" in resource.leak_report()
    del kept
    resource.device.synchronize()
    assert resource.leak_report() == "no live blocks"


def test_the_suite_reports_a_leak(tmp_path: pathlib.Path) -> None:
    here = pathlib.Path(__file__).resolve().parent
    (tmp_path / "conftest.py").write_text((here / "conftest.py").read_text())
    (tmp_path / "test_leak.py").write_text(
        "import ternmem as tern\nkept = []\ndef test_keeps():\n    kept.append(tern.Buffer(10, device='host').allocate())\n"
    )
    ended = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_leak.py"], cwd=tmp_path,
                           capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "test_leak.py:4" in ended.stdout


# --- Threads that share an object

threads = """
import faulthandler, sys, threading, time
import ternmem as tern
faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-5)
device = tern.open_device(sys.argv[1])
buffer = tern.Buffer(256, "int64", device).fill(1)
end = time.monotonic() + 1

def repeat(*calls):
    while time.monotonic() < end:
        for call in calls:
            try:
                call()
            except (tern.StreamMisuseError, ZeroDivisionError):
                pass

def run(*bodies):
    started = [threading.Thread(target=repeat, args=body) for body in bodies]
    for one in started:
        one.start()
    for one in started:
        one.join()
    device.synchronize()
"""

closed_stream = threads + """
streams = [tern.Stream(device)]
def replace():
    streams[0].close()
    streams[0] = tern.Stream(device)
use = lambda: buffer.fill(2, streams[0])
run((use,), (use,), (replace,), (lambda: streams[0].mark().wait(),))
"""

shared_plan = threads + """
memory = tern.UnifiedBuffer(256, device=device).fill(1)
plan = tern.PrefetchPlan()
use = (lambda: plan.add(memory, "host"), lambda: plan.entries[:1], lambda: len(plan))
run(use, use, use, use)
assert len(plan.entries) == len(plan) > 0
"""

shared_recorder = threads + """
recorder = tern.LaunchRecorder(tern.Stream(device), tern.inout(buffer))
use = (recorder.preflight, recorder.cancel)
run(use, use, use)
recorder.cancel()
buffer.fill(3)
"""

failing_kernel = threads + """
stream = tern.Stream(device)
kernel = tern.Kernel.from_function(device, lambda x: 1 / 0)
use = (lambda: kernel.launch(stream, 1, tern.inout(buffer)), lambda: buffer.clone(stream), device.synchronize)
run(use, use, use, use)
"""


@pytest.mark.parametrize("program", [closed_stream, shared_plan, shared_recorder, failing_kernel],
                         ids=["closed stream", "plan", "recorder", "failing kernel"])
@pytest.mark.parametrize("spec", ["host", "sim:0"])
def test_threads_share_an_object(program: str, spec: str) -> None:
    ended = run(program, spec, TERN_SIM_REPORT="quiet", TERN_SIM_MODE="collect")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_closed_stream_takes_no_work(device: tern.Device) -> None:
    stream = tern.Stream(device)
    stream.close()
    stream.close()
    for use in (stream.mark, stream.synchronize, lambda: tern.Buffer(1, device=device).fill(1, stream)):
        with pytest.raises(tern.StreamMisuseError, match="was closed"):
            use()


@pytest.mark.parametrize("wait", ["stream", "device", "buffer"])
def test_a_kernel_on_the_host_that_waits_gets_an_error(wait: str) -> None:
    host = tern.open_device("host")
    with tern.Stream(host) as stream:
        buffer = tern.Buffer(10, device=host).fill(1)
        calls = {"stream": stream.synchronize, "device": host.synchronize, "buffer": buffer.to_numpy}
        kernel = tern.Kernel.from_function(host, lambda x: calls[wait]())
        with pytest.raises(tern.StreamMisuseError, match="a kernel function called Tern"):
            kernel.launch(stream, 1, tern.inout(buffer))
            stream.synchronize()


# --- Reference cycles


class Holder:
    """Refers to an object that refers back."""

    def __init__(self) -> None:
        self.held: object = None

    def step(self, x: object) -> None:
        """Do nothing."""


def kernel_cycle(holder: Holder) -> object:
    return tern.Kernel.from_function("host", holder.step)


class Owned(tern.UnifiedBuffer):
    """A buffer that refers to its holder."""

    owner: Holder


def owned_by(holder: Holder) -> Owned:
    buffer = Owned((4,), "float32", device="host")
    buffer.owner = holder
    return buffer


def lease_cycle(holder: Holder) -> object:
    return owned_by(holder).discard_host()


def use_cycle(holder: Holder) -> object:
    return tern.inout(owned_by(holder))


def recorder_cycle(holder: Holder) -> object:
    return tern.LaunchRecorder(None, tern.inout(owned_by(holder)))


@pytest.mark.parametrize("make", [kernel_cycle, lease_cycle, use_cycle, recorder_cycle])
def test_cycles_are_collected(make: Callable[[Holder], object]) -> None:
    holder = Holder()
    holder.held = make(holder)
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None


# --- Leaks at exit

leaks = """
import ctypes
import ternmem as tern
kept = tern.Buffer(1000, "float32", "sim", tag="weights").allocate()
gone = tern.Buffer(1000, "float32", "sim", tag="gone").allocate()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
"""


def test_leaks_are_printed_at_exit_if_the_environment_asks_for_it() -> None:
    ended = run(leaks, TERN_MEMORY="leaks", TERNMEM_LEAK_WARNINGS="0")
    assert ended.returncode == 0
    table = [line.split() for line in ended.stderr.splitlines()]
    assert ["4.0", "KiB", "1", "sim:0", "weights", "<string>:4"] in table, ended.stderr
    assert "gone" not in ended.stderr
