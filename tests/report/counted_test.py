"""A report about a program agrees with the counters that the program read from the library, to the byte.

    counted_test.py TERN FOLDER

FOLDER contains the programs of tests/report/counted, compiled. They run on every kind of device that needs no GPU. If
TERN_COUNTED_DEVICE is set, they also run on that device, with sizes multiplied by TERN_COUNTED_FACTOR.
TERN_COUNTED_OUT is a folder that keeps the recordings of that device. The last line of the output has its figures.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TERN, PROGRAMS = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
DEVICE = os.environ.pop("TERN_COUNTED_DEVICE", "")
FACTOR = os.environ.pop("TERN_COUNTED_FACTOR", "1")
OUT = os.environ.pop("TERN_COUNTED_OUT", "")
# The program records its timed events outside of those of the recording, so it measures slightly longer times.
RATE_TOLERANCE = 0.05

figures = []


class Counted:
    """The programs on one device. `device` and `factor` are their arguments."""

    device, factor = "", "1"

    def compare(self, program):
        """Runs the program, compares what every program counts, and returns counters and report."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        kept = OUT if OUT and self.device == DEVICE else folder.name
        trace = str(pathlib.Path(kept).resolve() / f"{program}.trace")
        run = subprocess.run([PROGRAMS / program, self.device, self.factor], env=os.environ | {"TERN_TRACE": trace},
                             check=False, capture_output=True, text=True)
        if run.returncode == 77:
            self.skipTest(run.stderr.strip())
        self.assertEqual(run.returncode, 0, run.stderr)
        counted = json.loads(run.stdout.splitlines()[-1])
        run = subprocess.run([TERN, "report", "--json", trace], check=True, capture_output=True, text=True)
        report = json.loads(run.stdout)
        self.assertEqual(report["lost_events"], 0)
        self.assertTrue(report["is_complete"])
        self.check_memory(counted, report)
        self.check_copies(counted, report)
        return counted, report

    def check_memory(self, counted, report):
        for pool in counted["pools"]:
            self.assertGreater(pool["peak_live_bytes"], 0)
            expected = {"peak_live_bytes": pool["peak_live_bytes"], "peak_held_bytes": pool["peak_held_bytes"],
                        "live_at_end_bytes": pool["live_bytes"], "held_at_end_bytes": pool["held_bytes"]}
            # The device of the program may also have a pool of the library, for staging.
            seen = [one for one in report["resources"] if one["device"] == pool["device"]
                    and one["peak_live_bytes"] == pool["peak_live_bytes"]]
            self.assertEqual(len(seen), 1, report["resources"])
            self.assertEqual({name: seen[0][name] for name in expected}, expected)
            device = next(one for one in report["devices"] if one["device"] == pool["device"])
            if sum(one["device"] == pool["device"] for one in report["resources"]) == 1:
                self.assertEqual({name: device[name] for name in expected if name in device},
                                 {name: value for name, value in expected.items() if name in device})
            self.assertEqual(sum(tag["bytes"] for tag in device["tags_at_peak"]), device["peak_live_bytes"])
            self.assertEqual(sum(row["bytes"] for row in report["not_freed"] if row["device"] == pool["device"]),
                             device["live_at_end_bytes"])

    def check_copies(self, counted, report):
        seen = {one["direction"]: {"copies": one["copies"], "bytes": one["bytes"]} for one in report["copies"]}
        # The library does not count copies within the host.
        seen.pop("within the host", None)
        self.assertEqual(seen, {name: one for name, one in counted["copies"].items() if one["copies"] > 0})

    def note(self, text):
        if self.device == DEVICE:
            figures.append(text)

    def test_training(self):
        _, report = self.compare("training")
        tags = {tag["tag"] for tag in report["devices"][0]["tags_at_peak"]}
        self.assertLessEqual({"weights", "optimizer", "batch"}, tags)
        self.assertEqual(report["findings"], [])
        self.note(f"training {report['devices'][0]['peak_live_bytes']} B live")

    def test_oversubscribed(self):
        counted, report = self.compare("oversubscribed")
        self.assertGreater(counted["evictions"]["copies"], 0)
        self.assertEqual(report["evictions"], counted["evictions"])
        moves = {one["reason"]: {"copies": one["moves"], "bytes": one["bytes"]} for one in report["moves"]}
        if counted["elided"]["copies"] == 0:
            self.assertEqual(moves, counted["moves"])
        # Bytes that had to be saved: a device writes them back to the host, the host to a file.
        for reason, name in (("evict", "written_back_bytes"), ("spill", "spilled_bytes")):
            self.assertEqual(moves.get(reason, {"bytes": 0})["bytes"], counted[name])
        self.assertIn("evicted again and again", [one["kind"] for one in report["findings"]])
        self.note(f"{counted['evictions']['copies']} evictions")

    def test_pipeline(self):
        # Other programs on the machine may disturb the times of one run.
        for _ in range(3):
            counted, report = self.compare("pipeline")
            rates = self.rates_of(counted, report)
            if rates is None:
                return
            seen, measured = rates
            if abs(seen / measured - 1) < RATE_TOLERANCE:
                self.note(f"uploads {seen:.2f} GB/s, {measured:.2f} by events")
                return
        self.fail(f"{seen:.2f} GB/s in the report, {measured:.2f} GB/s by events, in the last of three runs")

    def rates_of(self, counted, report):
        """Returns the rate of the uploads in the report and that of the program's events, in GB/s. Returns None if the
        two need not agree."""
        uploads = counted["uploads"]
        seen = next((one for one in report["copies"] if one["direction"] == "host to device"), None)
        if seen is None:
            self.assertEqual(self.device, "host", "only the host uploads nothing")
            return None
        self.assertEqual(seen["bytes"], uploads["bytes"])
        if self.device.startswith("sim"):
            self.assertEqual(seen["busy_ns"], 0, "a simulated device has no times")
            return None
        # The events of the program are around those of the recording. Drivers round times.
        self.assertLess(seen["busy_ns"], 1.01 * uploads["ns"])
        if uploads["shares_processors"]:
            return None  # a kernel may have run between an event of the program and the copy
        self.assertGreaterEqual(seen["timed_bytes"], 0.9 * seen["bytes"])
        self.assertAlmostEqual(seen["gb_per_s"], seen["timed_bytes"] / seen["busy_ns"])
        return seen["gb_per_s"], uploads["bytes"] / uploads["ns"]


class OnSim(Counted, unittest.TestCase):
    device = "sim"


class OnHost(Counted, unittest.TestCase):
    device = "host"


class OnOpenCl(Counted, unittest.TestCase):
    device = "opencl:0"


class OnASimulatedCudaDriver(Counted, unittest.TestCase):
    """It has times, and they do not depend on the machine."""

    device = "cuda:0?driver=sim"


@unittest.skipUnless(DEVICE, "TERN_COUNTED_DEVICE is not set")
class OnDevice(Counted, unittest.TestCase):
    device, factor = DEVICE, FACTOR


if __name__ == "__main__":
    program = unittest.main(exit=False)
    if figures:
        sys.stderr.flush()
        print(f"agree on {DEVICE}:" if program.result.wasSuccessful() else "disagree:", "; ".join(figures))
    sys.exit(not program.result.wasSuccessful())
