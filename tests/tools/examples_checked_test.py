"""Every example and the tour on a simulated device, traced and checked: no finding."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

TERN = os.environ["TERN_TOOL"]
EXAMPLES = pathlib.Path(os.environ["TERN_EXAMPLES"])
SOURCES = pathlib.Path(__file__).resolve().parents[2] / "examples"

# These plant a mistake, on a device of their own that leaves no trace, to show its report.
PLANTED = {"04_find_a_missing_wait": "TERN-S101", "09_kernels": "TERN-S101",
           "10_declared_launches": "TERN-S101"}
# These open devices by sim::open(), which leaves a trace only where its options say so; what the
# checker finds there is printed. One opens the host only.
UNTRACED = {"02_errors", "04_find_a_missing_wait", "12_prefetch_plan"}


def clean(**environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
    return env | environment


class Checked(unittest.TestCase):
    def run_traced(self, *command):
        """Runs it; gives the codes it reported, and the traces it left."""
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "run.trace"
            run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder,
                                 env=clean(TERN_DEVICE="sim", TERN_SIM_TRACE=str(trace)))
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            traces = sorted(pathlib.Path(folder).glob("run.trace*"))
            for one in traces:
                check = subprocess.run([TERN, "check", str(one)], capture_output=True, text=True,
                                       check=False, env=clean())
                self.assertEqual(check.returncode, 0, f"{command}\n{check.stdout}{check.stderr}")
                self.assertRegex(check.stdout, r"[1-9]\d* records, .* 0 findings, complete\n")
            return re.findall(r"^TERN-S\d+", run.stderr, re.MULTILINE), len(traces)

    def test_no_example_has_a_finding_but_those_it_plants(self):
        sources = sorted(SOURCES.glob("*.cpp"))
        self.assertGreaterEqual(len(sources), 14)
        for source in sources:
            with self.subTest(source.stem):
                reported, traces = self.run_traced(str(EXAMPLES / source.stem))
                planted = [PLANTED[source.stem]] if source.stem in PLANTED else []
                self.assertEqual(reported, planted)
                self.assertEqual(traces == 0, source.stem in UNTRACED)

    def test_the_tour_has_no_finding(self):
        for device in ("sim", "host"):
            with self.subTest(device):
                reported, traces = self.run_traced(TERN, "tour", "--device", device)
                self.assertEqual(reported, [])
                self.assertEqual(traces, 1 if device == "sim" else 0)


if __name__ == "__main__":
    unittest.main()
