"""Proves a Promela model for its bound, and shows that each planted mistake fails it.

A mistake fails at its shortest program and at no shorter one, so a model misses nothing by accident
and finds nothing by accident. A model takes K, the most steps of a program, and MISTAKE, which of
its mistakes is planted (0 is none), as macros.
"""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

PROVED = "proved"
WAIT_FOR_EVER = "wait left for ever"
UNFINISHED = "search not finished"
SKIPPED = 77


@dataclasses.dataclass
class Mistake:
    name: str
    number: int  # what MISTAKE is
    shortest: int  # K of the shortest program that fails
    failure: str


@dataclasses.dataclass
class Model:
    path: pathlib.Path
    bound: int  # K for which the model without a mistake is proved
    memory_limit_mb: int
    failures: dict  # what stands in an assertion that fails, and what that means
    mistakes: list


def search(model, k, mistake):
    """Runs the verifier on programs of up to k steps: its report, its seconds."""
    # An optimised build takes longer than every search but the proof.
    level = "-O1" if k == model.bound and mistake == 0 else "-O0"
    with tempfile.TemporaryDirectory() as folder:

        def run(*command):
            return subprocess.run(
                command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

        for command in (
            ("spin", "-a", f"-DK={k}", f"-DMISTAKE={mistake}", str(model.path)),
            ("gcc", "-w", level, "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={model.memory_limit_mb}",
             "-o", "pan", "pan.c"),
        ):
            step = run(*command)
            if step.returncode != 0:
                sys.exit(f"{command[0]} could not build the verifier:\n{step.stdout}")
        start = time.monotonic()
        report = run("./pan").stdout
        return report, time.monotonic() - start


def verdict_of(model, report):
    error = re.search(r"^pan:1: (.*)", report, re.M)
    for sign, failure in {**model.failures, "invalid end state (": WAIT_FOR_EVER}.items():
        if error and sign in error[1]:
            return failure
    # A search that ran out of memory or depth also ends without an error. It proves nothing.
    cut_short = "Search not completed" in report or "max search depth too small" in report
    complete = re.search(r"Full statespace search[\s\S]*invalid end states\s+\+", report)
    if complete and not cut_short and "errors: 0" in report:
        return PROVED
    return UNFINISHED


def is_as_expected(model, name, k, mistake, expected):
    report, seconds = search(model, k, mistake)
    states = re.search(r"(\S+) states, stored", report)
    verdict = verdict_of(model, report)
    print(
        f"{name:<26} K={k} {int(float(states[1])) if states else 0:>10,} states {seconds:6.1f} s  "
        f"{verdict}" + ("" if verdict == expected else f", expected: {expected}"),
        flush=True,
    )
    if verdict != expected:
        print(report)
    return verdict == expected


def main(model):
    """0 if every run is as expected, 1 if one is not, SKIPPED if the tools are missing."""
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            return SKIPPED
    results = []
    for one in model.mistakes:
        if one.shortest > 1:
            results.append(is_as_expected(model, one.name, one.shortest - 1, one.number, PROVED))
        results.append(is_as_expected(model, one.name, one.shortest, one.number, one.failure))
    results.append(is_as_expected(model, "no mistake", model.bound, 0, PROVED))
    return 0 if all(results) else 1
