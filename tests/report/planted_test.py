"""A report about a program with one planted problem names the problem and its line.

    planted_test.py TERN FOLDER

FOLDER contains the programs of tests/report/planted, compiled.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCES = pathlib.Path(__file__).resolve().parent / "planted"
TERN, PROGRAMS = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))


def line_of(program, comment):
    """Returns the line of the statement that ends with the comment, as reports name it."""
    lines = (SOURCES / f"{program}.cpp").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if f"planted: {comment}" in line)
    # A call that is broken into two lines has the line of its beginning or of its arguments.
    return [f"{program}.cpp:{number}" for number in (at + 1, at)]


class Planted(unittest.TestCase):
    def findings_of(self, program):
        """Runs the program and returns the sentences under "What stands out"."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        trace = str(pathlib.Path(folder.name) / "run.trace")
        subprocess.run([PROGRAMS / program], env=os.environ | {"TERN_TRACE": trace}, check=True,
                       stdout=subprocess.DEVNULL)
        text = subprocess.run([TERN, "report", trace], check=True, capture_output=True,
                              text=True).stdout
        self.assertIn("\nWhat stands out:\n", text)
        part = text.split("\nWhat stands out:\n")[1].split("\n\n")[0]
        lines = part.splitlines()
        self.assertTrue(all(line.startswith("    What to do: ") for line in lines[1::2]), part)
        return [line.removeprefix("  - ") for line in lines[::2]]

    def check_line(self, program, comment, sentence):
        self.assertTrue(any(line in sentence for line in line_of(program, comment)), sentence)

    def test_a_missing_wait(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        trace = str(pathlib.Path(folder.name) / "run.trace")
        subprocess.run([PROGRAMS / "missing_wait"], env=os.environ | {"TERN_TRACE": trace}, check=True)
        run = subprocess.run([TERN, "check", trace], check=False, capture_output=True, text=True)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertEqual(run.stdout.count("TERN-S"), 1, run.stdout)
        self.assertIn("TERN-S101 missing-wait", run.stdout)
        self.check_line("missing_wait", "no wait before this", run.stdout)
        self.check_line("missing_wait", "the fill", run.stdout)

    def test_a_leak(self):
        findings = self.findings_of("leak")
        self.assertEqual(len(findings), 1, findings)
        self.assertIn("tagged 'history'", findings[0])
        self.assertIn("to 2.5 MiB in 40 blocks, and none of it was freed.", findings[0])
        self.check_line("leak", "never freed", findings[0])

    def test_a_refusal_because_of_fragmentation(self):
        findings = self.findings_of("fragmentation")
        self.assertEqual(len(findings), 1, findings)
        for part in ("requested 8.0 MiB tagged 'table'",
                     "although 32.0 MiB of 64.0 MiB held were free", "the largest free range had 1.0 MiB", "tagged 'index'"):
            self.assertIn(part, findings[0])
        self.check_line("fragmentation", "lies between", findings[0])
        self.check_line("fragmentation", "refused", findings[0])

    def test_a_stream_that_blocks_reuse(self):
        findings = self.findings_of("blocking_stream")
        self.assertEqual(len(findings), 1, findings)
        for part in ("memory freed on stream 'upload' could not be reused because 'upload' was still"
                     " behind", "mostly memory tagged 'result', allocated at",
                     "'upload' had to call a host function, submitted at"):
            self.assertIn(part, findings[0])
        self.check_line("blocking_stream", "the stream is behind", findings[0])
        self.check_line("blocking_stream", "the host function", findings[0])
        self.check_line("blocking_stream", "new memory", findings[0])


if __name__ == "__main__":
    unittest.main()
