"""What the structure tests share: where the tree is, how its sources read, how to report."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

# One alternative per lexical form, so that a quote inside a comment, a comment inside a string and
# the separator in 1'000 are each seen as what they are.
TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      | (?P<number>\b[0-9](?:'?[\w.])*)
      | (?P<string>(?:\b(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
                  |(?:"(?:\\.|[^"\\\n])*")
                  |(?:'(?:\\.|[^'\\\n])+'))""",
    re.DOTALL | re.VERBOSE,
)


def arguments(description, **more):
    """Parses --root and the further options given as name=dict(keywords of add_argument)."""
    parser = argparse.ArgumentParser(description=description)
    default = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--root", type=pathlib.Path, default=default, help="the tree to check")
    for name, keywords in more.items():
        parser.add_argument(f"--{name}", **keywords)
    return parser.parse_args()


def sources(root, *folders):
    """The C and C++ files below the folders of root, in a fixed order."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".hpp", ".h", ".cpp", ".c", ".cu", ".cuh", ".inl"):
                yield path


def mpi_folders():
    """The folders of <mpi.h>, or None without an MPI library for C++."""
    wrapper = shutil.which("mpicxx")
    shown = wrapper and subprocess.run([wrapper, "--showme:incdirs"], capture_output=True, text=True, check=False)
    return shown.stdout.split() if shown and shown.returncode == 0 else None


def needs_mpi(root, path):
    """Whether a header includes <mpi.h>, itself or through another header of Tern."""
    text = path.read_text()
    if re.search(r"^#include <mpi\.h>", text, re.M):
        return True
    inner = (root / "include" / name for name in re.findall(r'^#include "(tern/.*interop/.*)"', text, re.M))
    return any(needs_mpi(root, one) for one in inner if one.exists())


def without_comments(text, keep_strings=True):
    """The text with comments, and on demand literals, blanked. Line numbers stay as they are."""

    def blank(match):
        if match.lastgroup == "number" or (keep_strings and match["comment"] is None):
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    return TOKEN.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def list_entries(path):
    """(line number, text) of each entry of a list file; blank lines and # comments are left out."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()


def finish(violations, checked):
    """Prints one line per violation and ends the program with the status ctest looks at."""
    violations = list(violations)
    for violation in violations:
        print(violation)
    if violations:
        sys.exit(1)
    print(f"checked {checked}")
