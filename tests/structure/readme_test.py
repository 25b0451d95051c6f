"""The program README.md shows is the first example, which the tests compile and run."""

import re

import tree

README = "README.md"
EXAMPLE = "examples/01_first_steps.cpp"
BLOCK = re.compile(r"^```cpp\n(.*?)^```", re.DOTALL | re.M)


def lines_of(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


def violations(root):
    missing = [name for name in (README, EXAMPLE) if not (root / name).is_file()]
    if missing:
        yield from (f"{name}:1: does not exist." for name in missing)
        return
    readme, example = ((root / name).read_text() for name in (README, EXAMPLE))
    block = BLOCK.search(readme)
    start = re.search(r"^#include", example, re.M)
    if not block or not start:
        yield (f"{README}:1: has no cpp block." if start else f"{EXAMPLE}:1: has no #include.")
        return
    shown, real = lines_of(block[1]), lines_of(example[start.start():])
    first = tree.line_of(readme, block.start(1))
    for at in range(max(len(shown), len(real))):
        if shown[at:at + 1] != real[at:at + 1]:
            there = tree.line_of(example, start.start()) + at
            yield f"{README}:{first + at}: differs from {EXAMPLE}:{there}."
            return


def main():
    tree.finish(violations(tree.arguments(__doc__).root), f"{README} against {EXAMPLE}")


main()
