#!/usr/bin/env python3
"""Proves next_marks.pml for its bound, and shows that each planted mistake fails it.

A mistake fails at its fewest calls and at no fewer, so the model misses nothing by
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

MODEL = pathlib.Path(__file__).resolve().with_name("next_marks.pml")
BOUND = 5
MEMORY_LIMIT_MB = 1400

PROVED = "proved"
WRONG_NUMBER = "read a number it did not write"
TOO_EARLY = "called done before the work was"
RECORD_AFTER_END = "recorded on a stream that has ended"
WAIT_FOR_EVER = "wait left for ever"
UNFINISHED = "search not finished"

# What stands in the assertion that failed.
FAILURES = {
    "memory[": WRONG_NUMBER,
    "is_over": TOO_EARLY,
    "has_ended": RECORD_AFTER_END,
    "invalid end state (": WAIT_FOR_EVER,
}

# name, value of MISTAKE, fewest calls that fail, how they fail
MISTAKES = [
    ("M1 steal does not wait", 1, 3, WRONG_NUMBER),
    ("M2 not there yet is done", 2, 3, TOO_EARLY),
    ("M3 issued read too late", 3, 5, TOO_EARLY),
    ("M4 mark of another free", 4, 5, TOO_EARLY),
    ("M5 joined: the older mark", 5, 5, TOO_EARLY),
    ("M6 end breaks a promise", 6, 3, TOO_EARLY),
    ("M7 slot used too early", 7, 4, TOO_EARLY),
    ("M8 issued read too early", 8, 3, TOO_EARLY),
    ("M9 settle to the newest", 9, 5, TOO_EARLY),
    ("M10 hit without a promise", 10, 3, TOO_EARLY),
    ("M11 mark after the seal", 11, 4, RECORD_AFTER_END),
    ("unmet wait", 12, 3, WAIT_FOR_EVER),
]


def search(k, mistake, level):
    """Runs the verifier on programs of up to k calls: its report, its seconds."""
    with tempfile.TemporaryDirectory() as folder:

        def run(*command):
            return subprocess.run(
                command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

        for command in (
            ("spin", "-a", f"-DK={k}", f"-DMISTAKE={mistake}", str(MODEL)),
            ("gcc", "-w", level, "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_LIMIT_MB}",
             "-o", "pan", "pan.c"),
        ):
            step = run(*command)
            if step.returncode != 0:
                sys.exit(f"{command[0]} could not build the verifier:\n{step.stdout}")
        start = time.monotonic()
        report = run("./pan").stdout
        return report, time.monotonic() - start


def verdict_of(report):
    error = re.search(r"^pan:1: (.*)", report, re.M)
    for sign, failure in FAILURES.items():
        if error and sign in error[1]:
            return failure
    # A search that ran out of memory or depth also ends without an error. It proves nothing.
    cut_short = "Search not completed" in report or "max search depth too small" in report
    complete = re.search(r"Full statespace search[\s\S]*invalid end states\s+\+", report)
    if complete and not cut_short and "errors: 0" in report:
        return PROVED
    return UNFINISHED


def is_as_expected(name, k, mistake, expected):
    # Most runs are shorter than an optimised build of them.
    report, seconds = search(k, mistake, "-O0" if k < BOUND or mistake else "-O2")
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
    for name, mistake, fewest, failure in MISTAKES:
        results.append(is_as_expected(name, fewest - 1, mistake, PROVED))
        results.append(is_as_expected(name, fewest, mistake, failure))
    results.append(is_as_expected("no mistake", BOUND, 0, PROVED))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
