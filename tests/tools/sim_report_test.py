"""The report the guide shows is the one the example prints."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = pathlib.Path(os.environ["TERN_TOOL"]).parent / "examples/04_find_a_missing_wait"


def report_in(text):
    """From the line with the code to the last one of the block it begins."""
    return re.search(r"^TERN-S101.*?\n(?:  .*\n)+", text, re.M)[0]


class Report(unittest.TestCase):
    @unittest.skipUnless(EXAMPLE.exists(), "the examples are not built")
    def test_is_the_same_in_the_guide_and_in_the_example(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
        run = subprocess.run([EXAMPLE], env=env, capture_output=True, text=True, check=True)
        printed = report_in(run.stdout.replace(f"{ROOT}/", ""))
        self.assertEqual(printed, report_in((ROOT / "docs/guide/sim.md").read_text()))
        self.assertIn("with the wait: no finding", run.stdout)


if __name__ == "__main__":
    unittest.main()
