#!/usr/bin/env python3
"""Proves stream_reuse.pml for its bound, and shows that each planted mistake fails it.

A mistake fails at its shortest program and at no shorter one, so the model misses nothing by
accident and finds nothing by accident. Exits with 0 if every run is as expected, 1 if one is not,
77 if the tools are missing.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

MODEL = pathlib.Path(__file__).resolve().with_name("stream_reuse.pml")
BOUND = 6
MEMORY_LIMIT_MB = 1900

PROVED = "proved"
WRONG_NUMBER = "read a number it did not write"
WAIT_FOR_EVER = "wait left for ever"
UNFINISHED = "search not finished"

# name, value of MISTAKE, shortest program that fails, how it fails
MISTAKES = [
    ("M1 merge does not record", 1, 4, WRONG_NUMBER),
    ("M2 steal does not wait", 2, 3, WRONG_NUMBER),
    ("M3 remainder to the thief", 3, 4, WRONG_NUMBER),
    ("M4 free records only once", 4, 4, WRONG_NUMBER),
    ("M5 thief waits for itself", 5, 3, WRONG_NUMBER),
    ("M6 merge does not wait", 6, 4, WRONG_NUMBER),
    ("unmet wait", 7, 1, WAIT_FOR_EVER),
]


def search(k, mistake):
    """Runs the verifier on programs of up to k operations: its report, its seconds."""
    with tempfile.TemporaryDirectory() as folder:

        def run(*command):
            return subprocess.run(
                command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

        for command in (
            ("spin", "-a", f"-DK={k}", f"-DMISTAKE={mistake}", str(MODEL)),
            ("gcc", "-w", "-O2", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_LIMIT_MB}",
             "-o", "pan", "pan.c"),
        ):
            step = run(*command)
            if step.returncode != 0:
                sys.exit(f"{command[0]} could not build the verifier:\n{step.stdout}")
        start = time.monotonic()
        report = run("./pan").stdout
        return report, time.monotonic() - start


def verdict_of(report):
    if "assertion violated" in report:
        return WRONG_NUMBER
    if "invalid end state (" in report:
        return WAIT_FOR_EVER
    # A search that ran out of memory or depth also ends without an error. It proves nothing.
    cut_short = "Search not completed" in report or "max search depth too small" in report
    complete = re.search(r"Full statespace search[\s\S]*invalid end states\s+\+", report)
    if complete and not cut_short and "errors: 0" in report:
        return PROVED
    return UNFINISHED


def is_as_expected(name, k, mistake, expected):
    report, seconds = search(k, mistake)
    states = re.search(r"(\S+) states, stored", report)
    verdict = verdict_of(report)
    print(
        f"{name:<26} K={k} {int(float(states[1])) if states else 0:>10,} states {seconds:6.1f} s  "
        f"{verdict}" + ("" if verdict == expected else f", expected: {expected}"),
        flush=True,
    )
    if verdict != expected:
        print(report)
    return verdict == expected


def main():
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return 77
    results = []
    for name, mistake, shortest, failure in MISTAKES:
        if shortest > 1:
            results.append(is_as_expected(name, shortest - 1, mistake, PROVED))
        results.append(is_as_expected(name, shortest, mistake, failure))
    results.append(is_as_expected("no mistake", BOUND, 0, PROVED))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
