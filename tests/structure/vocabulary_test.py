"""Retired words do not come back, and the numbers of public headers and types do not grow."""

import re

import public_types
import tree

# Each line: the retired word, and the word that is used instead. Identifiers and prose alike.
LIST = "tests/structure/retired_words.txt"
# Raise this number only with a header that users need; a type that only the library needs goes to
# src/, or to include/tern/detail/ where a template or an inline function needs it.
MAX_PUBLIC_HEADERS = 63
MAX_DETAIL_HEADERS = 27
# Without the exception classes, which a macro generates from the list of error codes.
MAX_PUBLIC_TYPES = 190

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
    detail = len(list(tree.sources(root, "include/tern/detail")))
    headers = len(list(tree.sources(root, "include/tern"))) - detail
    if headers > MAX_PUBLIC_HEADERS:
        violations.append(f"include/tern:1: has {headers} public headers, and {MAX_PUBLIC_HEADERS} "
                          "are allowed. Move what users do not need to src/.")
    if detail > MAX_DETAIL_HEADERS:
        violations.append(f"include/tern/detail:1: has {detail} headers, and {MAX_DETAIL_HEADERS} are "
                          "allowed. Move what no public header needs to src/.")
    types = sum(len(public_types.public_types(path.read_text()))
                for path in tree.sources(root, "include/tern")
                if root / "include/tern/detail" not in path.parents)
    if types > MAX_PUBLIC_TYPES:
        violations.append(f"include/tern:1: has {types} public types, and {MAX_PUBLIC_TYPES} are "
                          "allowed. Move what users do not name to src/ or to include/tern/detail/.")
    tree.finish(violations, f"{count} files for {len(words)} retired words, {headers} public headers, "
                            f"{detail} in detail/, {types} public types")


if __name__ == "__main__":
    main()
