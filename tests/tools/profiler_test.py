"""The driver calls that examples make for tagged memory are in ranges of a profiler."""

import os
import pathlib
import subprocess
import tempfile
import unittest

EXAMPLES = pathlib.Path(os.environ["TERN_EXAMPLES"])
PROFILER = os.environ["TERN_FAKE_PROFILER"]


class Profiler(unittest.TestCase):
    def ranges(self, example):
        """The names of the ranges that the profiler was told of, in their order."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
            env |= {"NVTX_INJECTION64_PATH": PROFILER, "FAKE_PROFILER_LOG": str(log)}
            run = subprocess.run([EXAMPLES / example], capture_output=True, text=True, check=False,
                                 cwd=folder, env=env)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            lines = log.read_text().splitlines()
        self.assertEqual(sum(line == "pop" for line in lines), len(lines) / 2, lines)
        return [line.removeprefix("push ") for line in lines if line != "pop"]

    def test_a_pool_that_grows_for_a_tagged_block(self):
        self.assertIn("batch", self.ranges("05_memory"))

    def test_allocations_of_a_device_have_the_name_of_their_tag(self):
        self.assertIn("column", self.ranges("04_find_a_missing_wait"))

    def test_copies_of_a_unified_buffer_have_the_name_of_its_tag(self):
        self.assertGreaterEqual(self.ranges("11_unified").count("heat"), 2)

    def test_a_copy_has_the_name_of_its_destination(self):
        self.assertIn("grid", self.ranges("06_buffers"))


if __name__ == "__main__":
    unittest.main()
