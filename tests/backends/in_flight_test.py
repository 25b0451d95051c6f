"""AddressSanitizer and Valgrind report host memory that a copy or a pool still has, and only that."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/guide/lifetime.md").read_text()
PROGRAM = os.environ["TERN_TOUCHED_IN_FLIGHT"]
BINARY = pathlib.Path(PROGRAM).read_bytes()
IS_ASAN, IS_TSAN = b"__asan_init" in BINARY, b"__tsan_init" in BINARY
SOURCE = "tests/backends/touched_in_flight.cpp"
CORRECT = ["read_source_ok", "wait_ok", "chain_ok", "function_ok", "streams_ok", "reuse_ok", "lose_ok"]
SPECS = ["host", "sim:0?seed=7&schedule=lazy", "opencl:0", "cuda:0?driver=sim"]
OPTIONS = "detect_leaks=0:detect_stack_use_after_return=1"


def run(program, spec, *before):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
    env["ASAN_OPTIONS"] = OPTIONS
    done = subprocess.run([*before, PROGRAM, program, spec], env=env, capture_output=True, text=True,
                          check=False, timeout=240)
    return done.returncode, done.stderr


def is_open(spec):
    """Is there such a device? A program that does nothing tells."""
    status, printed = run("lose_ok", spec)
    return status == 0 or "InvalidDevice" not in printed


class InFlight(unittest.TestCase):
    def setUp(self):
        self.specs = [spec for spec in SPECS if is_open(spec)]

    def test_programs_in_order_end_without_a_report(self):
        for spec in self.specs:
            for program in CORRECT:
                with self.subTest(spec=spec, program=program):
                    status, printed = run(program, spec)
                    self.assertEqual((status, printed), (0, ""))

    def reported(self, program, spec, kind, access, line_of):
        """AddressSanitizer names the kind of mistake, and the line that made it."""
        status, printed = run(program, spec)
        self.assertNotEqual(status, 0)
        self.assertIn("AddressSanitizer: " + kind, printed)
        self.assertIn(access + " of size", printed)
        lines = (ROOT / SOURCE).read_text().splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith(f"int {program}("))
        number = next(i for i in range(begin, len(lines)) if line_of in lines[i]) + 1
        self.assertRegex(printed, rf"in .*\(.*\S*{SOURCE}:{number}\b")
        return printed

    @unittest.skipUnless(IS_ASAN, "not built with AddressSanitizer")
    def test_reading_and_writing_what_a_copy_will_write(self):
        for spec in self.specs:
            with self.subTest(spec=spec):
                self.reported("read_destination", spec, "use-after-poison", "READ", "values[count / 2]")
                self.reported("write_destination", spec, "use-after-poison", "WRITE",
                              "values[count / 2] = 1")

    @unittest.skipUnless(IS_ASAN, "not built with AddressSanitizer")
    def test_freeing_what_a_copy_reads_or_writes(self):
        for spec in self.specs:
            for program, access in [("free_source", "READ"), ("free_destination", "WRITE")]:
                with self.subTest(spec=spec, program=program):
                    if spec.startswith("sim"):
                        status, printed = run(program, spec)
                        self.assertNotEqual(status, 0)
                        self.assertIn("TERN-S108", printed)
                        continue
                    printed = self.reported(program, spec, "heap-use-after-free", access,
                                            "swap(values)")
                    # The line that submitted the copy.
                    self.assertRegex(printed, r"tern: the copy submitted at \S*" + SOURCE +
                                     rf":\d+ in {program} will {access.lower()} 800000 bytes of "
                                     "freed host memory")

    @unittest.skipUnless(IS_ASAN, "not built with AddressSanitizer")
    def test_reading_a_block_that_a_pool_has(self):
        for spec in self.specs:
            programs = ["read_freed_pinned"] if spec != "opencl:0" else []
            if spec in ["host", "opencl:0"]:  # their device memory is the host's
                programs += ["read_freed_block", "read_freed_in_order"]
            for program in programs:
                with self.subTest(spec=spec, program=program):
                    status, printed = run(program, spec)
                    self.assertNotEqual(status, 0)
                    self.assertIn("AddressSanitizer: use-after-poison", printed)

    @unittest.skipUnless(IS_ASAN, "not built with AddressSanitizer")
    def test_the_guide_shows_the_reports(self):
        for program in ["read_destination", "read_freed_block"]:
            with self.subTest(program=program):
                _, printed = run(program, "host")
                frame = re.search(r"#0 \S+ (in .*\)) \S*(" + SOURCE + r":\d+)", printed)
                self.assertIn("READ of size 4 at", printed)
                self.assertIn(f"    #0 {frame[1]} {frame[2]}\n", GUIDE)

    @unittest.skipIf(IS_ASAN or IS_TSAN, "Valgrind runs programs without a sanitizer")
    @unittest.skipUnless(shutil.which("valgrind"), "Valgrind is not installed")
    def test_valgrind_reports_the_access(self):
        valgrind = ["valgrind", "--error-exitcode=9", "-q"]
        for program in ["read_destination", "read_freed_block"]:
            with self.subTest(program=program):
                status, printed = run(program, "host", *valgrind)
                self.assertEqual(status, 9)
                self.assertRegex(printed, r"Invalid read of size 4\n.*\n?.*touched_in_flight\.cpp")
        status, printed = run("chain_ok", "host", *valgrind)
        self.assertEqual((status, printed), (0, ""))


if __name__ == "__main__":
    unittest.main()
