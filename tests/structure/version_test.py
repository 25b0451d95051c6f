"""Files that repeat the version have the version of include/tern/core/version.hpp."""

import re

import tree

HEADER = "include/tern/core/version.hpp"
VERSION = r"\d+\.\d+\.\d+"
MINOR = r"\d+\.\d+"

# (files, what must have the version, or its first two numbers; the file must have it if the last is true)
PLACES = [
    (["CITATION.cff"], rf"^version: ({VERSION})$", True),
    (["CHANGELOG.md"], rf"\A# Changes\n\n## ({VERSION})\b", True),
    (["cmake/TernInstall.cmake"], rf"\blibtern({MINOR})\b", True),
    (["cmake/tern.map"], rf"^TERN_({MINOR}) {{$", True),
    ([HEADER, "src/core/version.cpp"], r"\blibrary_of_version_(\d+_\d+)\b", True),
    (["include/tern/c/tern.h"], rf'such as "({VERSION})"', True),
    (["docs/formats/trace.md"], rf'"tern ({VERSION})"', True),
    (["docs/guide/packages.md"], r"\b(?:libtern(?:\.so\.)?|library_of_version_|tern/)(\d+[._]\d+(?:\.\d+)?)", True),
    (["tests/install/**/CMakeLists.txt", "README.md", "docs/guide/*.md"],
     rf"find_package\(tern ({VERSION}|{MINOR})\b", False),
]


def violations(root):
    found = re.search(rf'^#define TERN_VERSION "({VERSION})"$', (root / HEADER).read_text(), re.M)
    if not found:
        yield f"{HEADER}:1: does not define TERN_VERSION."
        return
    version = found[1]
    for patterns, expression, is_required in PLACES:
        for path in [path for pattern in patterns for path in sorted(root.glob(pattern)) if path.is_file()]:
            text = path.read_text()
            name = path.relative_to(root).as_posix()
            matches = list(re.finditer(expression, text, re.M))
            if is_required and not matches:
                yield f"{name}:1: has nothing like '{expression}'."
            for match in matches:
                if match[1].replace("_", ".") not in (version, version.rpartition(".")[0]):
                    yield f"{name}:{tree.line_of(text, match.start(1))}: has version {match[1]}, but {HEADER} has {version}."


def main():
    tree.finish(violations(tree.arguments(__doc__).root), "the files that repeat the version")


main()
