"""Tests start threads as test::Thread, so that an exception in one fails a test and ends nothing."""

import re

import tree

THREAD = "tests/support/thread.hpp"
# The programs of tests/soak have no GoogleTest: an exception of a thread becomes a finding there.
EXEMPT = (THREAD, "tests/soak/")
# std::thread::id and std::thread::hardware_concurrency() start nothing.
RAW = re.compile(r"\bstd::(j?thread)\b(?!\s*::)")


def violations(root, paths):
    for path in paths:
        shown = path.relative_to(root).as_posix()
        if shown.startswith(EXEMPT):
            continue
        text = tree.without_comments(path.read_text(), keep_strings=False)
        for match in RAW.finditer(text):
            yield (f"{shown}:{tree.line_of(text, match.start())}: uses 'std::{match[1]}'. "
                   f"Use test::Thread of {THREAD}.")


def main():
    root = tree.arguments(__doc__).root
    paths = list(tree.sources(root, "tests"))
    tree.finish(violations(root, paths), f"the threads of {len(paths)} files")


main()
