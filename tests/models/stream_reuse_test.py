#!/usr/bin/env python3
"""stream_reuse.pml: how blocks that streams have freed go to others."""

import pathlib
import sys

import spin
from spin import Mistake

WRONG_NUMBER = "read a number it did not write"

MODEL = spin.Model(
    path=pathlib.Path(__file__).resolve().with_name("stream_reuse.pml"),
    bound=6,
    memory_limit_mb=1900,
    failures={"assertion violated": WRONG_NUMBER},
    mistakes=[
        Mistake("M1 merge does not record", 1, 4, WRONG_NUMBER),
        Mistake("M2 steal does not wait", 2, 3, WRONG_NUMBER),
        Mistake("M3 remainder to the thief", 3, 4, WRONG_NUMBER),
        Mistake("M4 free records only once", 4, 4, WRONG_NUMBER),
        Mistake("M5 thief waits for itself", 5, 3, WRONG_NUMBER),
        Mistake("M6 merge does not wait", 6, 4, WRONG_NUMBER),
        Mistake("unmet wait", 7, 1, spin.WAIT_FOR_EVER),
    ],
)

if __name__ == "__main__":
    sys.exit(spin.main(MODEL))
