"""The report about a vector that is freed too early is the one the guide shows."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["TERN_FREED_TOO_EARLY"]
GUIDE = (ROOT / "docs/guide/lifetime.md").read_text()
SOURCE = "tests/backends/freed_too_early.cpp"
BINARY = pathlib.Path(PROGRAM).read_bytes()
IS_ASAN, IS_TSAN = b"__asan_init" in BINARY, b"__tsan_init" in BINARY


def run(spec):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
    env["ASAN_OPTIONS"] = "detect_leaks=0"
    done = subprocess.run([PROGRAM, spec], env=env, capture_output=True, text=True, check=False)
    # However the compiler was told of the file.
    return done.returncode, re.sub(r"\S*" + SOURCE, SOURCE, done.stderr)


def report_in(text):
    return re.search(r"^TERN-S108.*?\n(?:  .*\n)+?(?=\S|\Z)", text, re.M)[0]


class Lifetime(unittest.TestCase):
    @unittest.skipIf(IS_TSAN, "devices are smaller there, and offsets others")
    def test_the_simulated_device_reports_what_the_guide_shows(self):
        status, printed = run("sim:0?seed=7&schedule=lazy")
        self.assertNotEqual(status, 0)
        self.assertEqual(report_in(printed), report_in(GUIDE.replace("```", "end")))
        # The line of the wait.
        self.assertRegex(printed, SOURCE + r":15: TERN-S108 freed-in-flight")

    @unittest.skipUnless(IS_ASAN, "not built with AddressSanitizer")
    def test_address_sanitizer_reports_the_copy_on_the_host_device(self):
        # A race of the free with the thread of the stream, which has to wake up first.
        for _ in range(20):
            _, printed = run("host")
            if "tern: the copy" in printed:
                break
        self.assertIn("AddressSanitizer: heap-use-after-free", printed)
        # Who read it, where it was freed, and where it was allocated: as the guide shows it.
        self.assertRegex(printed, r"(?s)tern: the copy submitted at \S*" + SOURCE +
                         r":13 in main will read 4000000 bytes of freed host memory\..*"
                         r"READ of size .* thread T1\n.*host::copy\(.*"
                         r"freed by thread T0 here:.*in main \S*" + SOURCE + r":14.*"
                         r"previously allocated by thread T0 here:.*in main \S*" + SOURCE + ":12")

    def test_the_guide_shows_the_program(self):
        program = (ROOT / SOURCE).read_text()
        shown = re.search(r"```cpp\n(const tern::Stream upload.*?)```", GUIDE, re.S)[1]
        inside = "".join(f"  {line}\n" for line in shown.splitlines())
        self.assertIn(inside, program)


if __name__ == "__main__":
    unittest.main()
