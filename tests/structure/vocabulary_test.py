"""Retired words do not come back, and no file has the marks of an unfinished merge."""

import re

import tree

# Each line: the retired word, and the word that is used instead. Identifiers and prose alike.
LIST = "tests/structure/retired_words.txt"

FOLDERS = ("include", "src", "tests", "tools", "bench", "examples", "docs", "scripts")
SUFFIXES = (".hpp", ".h", ".cpp", ".c", ".cu", ".py", ".md", ".cl", ".txt", "")


def files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield path
    yield from (path for path in (root / "README.md", root / "CONTRIBUTING.md") if path.is_file())


def main():
    root = tree.arguments(__doc__).root
    words = {}
    violations = []
    for line, entry in tree.list_entries(root / LIST):
        retired, _, instead = entry.partition(" ")
        words[retired] = instead.strip()
        if not instead:
            violations.append(f"{LIST}:{line}: says no word to use instead of '{retired}'.")
    pattern = re.compile(r"(?<![A-Za-z0-9_])(" + "|".join(map(re.escape, words)) + r")(?![A-Za-z0-9_])")
    merge = re.compile(r"^(<<<<<<< |=======$|>>>>>>> )", re.M)
    count = 0
    for path in files(root):
        name = path.relative_to(root).as_posix()
        if name in (LIST, "tests/structure/vocabulary_test.py", "tests/structure/planted_test.py"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        count += 1
        for match in pattern.finditer(text):
            violations.append(f"{name}:{tree.line_of(text, match.start())}: '{match[0]}' is retired; "
                              f"use '{words[match[0]]}'.")
        for match in merge.finditer(text):
            violations.append(f"{name}:{tree.line_of(text, match.start())}: '{match[0]}' is the mark of a merge.")
    tree.finish(violations, f"{count} files for {len(words)} retired words")


if __name__ == "__main__":
    main()
