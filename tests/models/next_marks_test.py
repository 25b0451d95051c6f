#!/usr/bin/env python3
"""next_marks.pml: what a pool may believe of the mark that its stream takes next."""

import pathlib
import sys

import spin
from spin import Mistake

WRONG_NUMBER = "read a number it did not write"
TOO_EARLY = "called done before the work was"
RECORD_AFTER_END = "recorded on a stream that has ended"
RECORD_ON_IDLE = "recorded on a stream that nobody borrows"

MODEL = spin.Model(
    path=pathlib.Path(__file__).resolve().with_name("next_marks.pml"),
    bound=5,
    memory_limit_mb=1400,
    failures={
        "memory[": WRONG_NUMBER,
        "is_over": TOO_EARLY,
        "has_ended": RECORD_AFTER_END,
        "is_idle": RECORD_ON_IDLE,
    },
    mistakes=[
        Mistake("M1 steal does not wait", 1, 3, WRONG_NUMBER),
        Mistake("M2 not there yet is done", 2, 3, TOO_EARLY),
        Mistake("M3 issued read too late", 3, 5, TOO_EARLY),
        Mistake("M4 mark of another free", 4, 5, TOO_EARLY),
        Mistake("M5 joined: the older mark", 5, 5, TOO_EARLY),
        Mistake("M6 end breaks a promise", 6, 3, TOO_EARLY),
        Mistake("M7 slot used too early", 7, 4, TOO_EARLY),
        Mistake("M8 issued read too early", 8, 3, TOO_EARLY),
        Mistake("M9 settle to the newest", 9, 5, TOO_EARLY),
        Mistake("M10 hit without a promise", 10, 3, TOO_EARLY),
        Mistake("M11 mark after the seal", 11, 4, RECORD_AFTER_END),
        Mistake("M12 event on an idle stream", 12, 2, RECORD_ON_IDLE),
        Mistake("M13 idle is done", 13, 3, TOO_EARLY),
        Mistake("M14 destroyed is sealed", 14, 4, RECORD_AFTER_END),
        Mistake("unmet wait", 15, 3, spin.WAIT_FOR_EVER),
    ],
)

if __name__ == "__main__":
    sys.exit(spin.main(MODEL))
