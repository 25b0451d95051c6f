"""Each source has its test: src/x/y.cpp has tests/x/y_test.cpp, or a line that names another."""

import pathlib

import tree

LIST = "tests/structure/covered_elsewhere.txt"


def mirror(source):
    inside = pathlib.PurePosixPath(source).relative_to("src")
    return (pathlib.PurePosixPath("tests") / inside.parent / f"{inside.stem}_test.cpp").as_posix()


def main():
    root = tree.arguments(__doc__).root
    sources = [path.relative_to(root).as_posix() for path in tree.sources(root, "src")
               if path.suffix == ".cpp"]
    violations, elsewhere = [], set()
    for line, entry in tree.list_entries(root / LIST):
        source, _, test = (part.strip() for part in entry.partition(":"))
        elsewhere.add(source)
        if source not in sources:
            violations.append(f"{LIST}:{line}: '{source}' does not exist.")
        elif not test or not (root / test).is_file():
            violations.append(f"{LIST}:{line}: '{source}' is covered by '{test}', which does not exist.")
        elif (root / mirror(source)).is_file():
            violations.append(f"{LIST}:{line}: '{source}' has its own test, so the line is not needed.")
    for source in sources:
        if source not in elsewhere and not (root / mirror(source)).is_file():
            violations.append(f"{source}:1: has no test {mirror(source)} and no line in {LIST}.")
    tree.finish(violations, f"the tests of {len(sources)} sources")


main()
