"""scripts/soak reports a footprint that grows. The runs of CI are too short for it to be judged."""

import importlib.machinery
import importlib.util
import pathlib
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/soak"

# (preset, seconds of the run, what grew, at half time, at the end, whether that is reported)
CASES = [
    ("dev", 60, "resident", 100_000, 100_000, False),
    ("dev", 60, "resident", 100_000, 105_000, False),
    ("dev", 60, "resident", 100_000, 107_000, True),
    ("dev", 60, "mappings", 200, 208, False),
    ("dev", 60, "mappings", 200, 209, True),
    ("dev", 60, "descriptors", 20, 22, False),
    ("dev", 60, "descriptors", 20, 23, True),
    ("asan", 60, "resident", 500_000, 600_000, False),
    ("asan", 60, "resident", 500_000, 700_000, True),
    ("tsan", 60, "mappings", 500, 2000, False),
    ("tsan", 60, "mappings", 500, 2001, True),
    ("tsan", 60, "descriptors", 20, 23, True),
    # Not settled at half time.
    ("dev", 29, "resident", 100_000, 900_000, False),
]


def load(path):
    loader = importlib.machinery.SourceFileLoader("soak", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("soak", loader))
    loader.exec_module(module)
    return module


def main():
    sys.dont_write_bytecode = True
    soak = load(SCRIPT)
    wrong = 0
    for preset, seconds, what, half, end, is_reported in CASES:
        result = soak.Result(soak.Job(preset, "server", "sim", seconds, 1))
        result.seconds = seconds
        result.footprint = {f"{one}_{when}": 10 for one in ("resident", "mappings", "descriptors")
                            for when in ("half", "end")}
        result.footprint |= {f"{what}_half": half, f"{what}_end": end}
        expected = [f"{what} {half} to {end}"] if is_reported else []
        if result.growth() != expected:
            wrong += 1
            print(f"{preset}, {seconds} s, {what} {half} to {end}: the script reports "
                  f"{result.growth()}, and should report {expected}")
    # The last run, had it been longer: a run that grew fails the whole.
    whole = soak.Soak(None)
    whole.results = [result]
    result.seconds = 60
    if whole.report() != 1:
        wrong += 1
        print("the script succeeds although a run has grown")
    sys.exit(1 if wrong else 0)


main()
