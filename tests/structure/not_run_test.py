"""scripts/test ends with what it left out. The script runs whole, on stand-ins for CMake and CTest."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import tree

SCRIPT = "scripts/test"

DOES_NOTHING = "#!/bin/sh\nexit 0\n"
FAILS = "#!/bin/sh\nexit 1\n"
# CTest's record of tests that passed and were skipped, in each of the ways a test can skip.
CTEST = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --preset ] && preset=$2; shift; done
mkdir -p "build/$preset/Testing/Temporary"
cat >"build/$preset/Testing/Temporary/LastTest.log" <<'LOG'
[ RUN      ] Streams.Wait
[       OK ] Streams.Wait (0 ms)
a_test.cpp:7: Skipped
there is no GPU

a_test.cpp:9: Skipped
there is no GPU

b_test.cpp:5: Skipped

skipped: no compute-sanitizer
device 'opencl:0' cannot be opened: no driver
Skip regular expression found in output. Regex=[is not available: ;cannot be opened: ]
SKIPPED [2] ../../python/tests/test_a.py:7: torch is not installed
SKIPPED [1] ../../python/tests/test_b.py:9: torch is not installed
LOG
echo "100% tests passed, 0 tests failed out of 5"
"""
SKIPPED = ["3 skipped: torch is not installed", "2 skipped: there is no GPU", "1 skipped: device 'opencl:0' cannot be opened: no driver",
           "1 skipped: no compute-sanitizer", "1 skipped: no reason stated"]
ELSEWHERE = ("GPUs: scripts/gpu-test; long random programs: scripts/soak; "
             "planted mistakes: scripts/mutants")

NO_PYTHON = "dev: the Python module, because nanobind, NumPy or pytest is not installed"

# (options, the presets that run, the other lines of the list)
CASES = [
    ([], ["dev", "asan"], ["asan: the long tests", "presets: dev-clang tsan release-shared"]),
    (["--quick"], ["dev"], ["dev: the long tests", "presets: dev-clang asan tsan release-shared"]),
    (["--full"], ["dev", "asan", "tsan"],
     ["asan: the long tests", "tsan: the long tests", "presets: dev-clang"]),
    (["--only", "core"], ["dev"],
     ["the tests of every label except core", "presets: dev-clang asan tsan release-shared"]),
    (["--preset", "tsan"], ["tsan"],
     ["tsan: the long tests", "presets: dev dev-clang asan release-shared"]),
]
CASES_WITHOUT_PYTHON = [
    (["--quick"], ["dev"],
     ["dev: the long tests", NO_PYTHON, "presets: dev-clang asan tsan release-shared"]),
    (["--only", "core"], ["dev"],
     ["the tests of every label except core", "presets: dev-clang asan tsan release-shared"]),
    (["--preset", "tsan"], ["tsan"],
     ["tsan: the long tests", "presets: dev dev-clang asan release-shared"]),
]


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def not_run(root, options, presets, has_python):
    """The status of the script, and the lines of its list or, without a list, of its output."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        (copy / "scripts").mkdir()
        for name in ("test", "progress.sh"):
            shutil.copy(root / "scripts" / name, copy / "scripts" / name)
        for name in ("bin/cmake", "scripts/setup", "scripts/coverage", "build/release-shared/tern"):
            write_program(copy / name, DOES_NOTHING)
        write_program(copy / "bin/ctest", CTEST)
        write_program(copy / "bin/python3", DOES_NOTHING if has_python else FAILS)
        for preset in presets:
            (copy / "build" / preset).mkdir(exist_ok=True)
            (copy / "build" / preset / "labels.txt").write_text("core\n")
            (copy / "build" / preset / "CMakeCache.txt").write_text("")
        variables = {name: value for name, value in os.environ.items()
                     if name not in ("LONG_TESTS", "TERN_CMAKE_ARGS")}
        variables["PATH"] = f"{copy / 'bin'}:{variables['PATH']}"
        done = subprocess.run(["bash", str(copy / SCRIPT), *options], env=variables, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for preset in presets:
            listed = copy / "build" / preset / "skipped.txt"
            if not listed.is_file() or listed.read_text().splitlines() != SKIPPED:
                return done.returncode, [f"build/{preset}/skipped.txt has other lines than {SKIPPED}"]
    _, found, rest = done.stdout.partition("\nNot run\n")
    return done.returncode, [line.strip() for line in (rest if found else done.stdout).splitlines()]


def violations(root):
    cases = [(True, *case) for case in CASES] + [(False, *case) for case in CASES_WITHOUT_PYTHON]
    for has_python, options, presets, others in cases:
        expected = [f"{preset}: 8 skipped tests; the 5 reasons are in build/{preset}/skipped.txt" for preset in presets]
        expected += others + [ELSEWHERE]
        status, lines = not_run(root, options, presets, has_python)
        if (status, lines) != (0, expected):
            yield (f"{SCRIPT}:1: with options {options} it ends with {status} and lists as not run: "
                   f"{lines}. Expected: {expected}")


def main():
    root = tree.arguments(__doc__).root.resolve()
    tree.finish(violations(root), f"{len(CASES) + len(CASES_WITHOUT_PYTHON)} lists of {SCRIPT}")


main()
