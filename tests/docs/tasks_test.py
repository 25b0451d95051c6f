"""The programs of README.md, docs/tasks and docs/migrate run, and print what their pages show.

A page has one program, in a block ```cpp or ```python, and its output, in a block ```text. If a block ```sh stands between
them, the output is that of its commands, which run in an empty folder with ./program or program.py and the tern command.
README.md has one program in each language, and the output behind each.
All C++ programs are compiled as one translation unit, because reading the headers takes longer than reading the programs.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse

FOLDERS = ("docs/tasks", "docs/migrate")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.M)
INCLUDE = re.compile(r"^#include.*$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")

# What a page needs that a machine may lack: its import, and how to find out.
LIBRARIES = {"torch": "import torch; assert torch.cuda.is_available()", "cupy": "import cupy; cupy.cuda.runtime.getDevice()",
             "pyarrow": "import pyarrow"}


@dataclasses.dataclass
class Page:
    """The program of a page, the commands that run it if any, and the output that the page shows."""

    path: pathlib.Path
    name: str
    language: str
    program: str
    line: int
    commands: str
    output: str

    @property
    def entry(self):
        return "program_of_" + re.sub(r"\W", "_", self.name)


def read_page(root, path):
    """The page, or a sentence that says what is wrong with it."""
    text = path.read_text()
    name = path.relative_to(root).as_posix()
    blocks = [(match[1], match[2], text.count("\n", 0, match.start(2)) + 1) for match in BLOCK.finditer(text)]
    programs = [block for block in blocks if block[0] in ("cpp", "python")]
    outputs = [block for block in blocks if block[0] == "text"]
    commands = [block for block in blocks if block[0] == "sh"]
    if len(programs) != 1 or len(outputs) != 1 or len(commands) > 1:
        return (f"{name}:1: needs one block 'cpp' or 'python', at most one 'sh' and one 'text', and has {len(programs)}, "
                f"{len(commands)} and {len(outputs)}.")
    (language, program, line), shown = programs[0], outputs[0][1]
    return Page(path, name, language, program, line, commands[0][1] if commands else "", shown)


def read_readme(root):
    """The programs of README.md, or a sentence that says what is wrong with it."""
    path = root / "README.md"
    text = path.read_text()
    blocks = [(match[1], match[2], text.count("\n", 0, match.start(2)) + 1) for match in BLOCK.finditer(text)]
    if [block[0] for block in blocks] != ["cpp", "text", "python", "text"]:
        return ["README.md:1: needs a block 'cpp', its output in 'text', a block 'python' and its output, in this order."]
    return [Page(path, "README.md", language, program, line, "", output)
            for (language, program, line), (_, output, _) in zip(blocks[::2], blocks[1::2])]


def unit_of(pages):
    """One translation unit: the program of each page in a namespace, and a main() that calls one by name.

    Lines count from the first one of each program, because outputs name lines, and readers see the program alone.
    """
    includes, programs, calls = ["#include <string_view>"], [], []
    for page in pages:
        includes += INCLUDE.findall(page.program)
        body = INCLUDE.sub("", page.program).rstrip()
        # Only the real main() may end without a value.
        body = re.sub(r"\}(?:  //[^\n]*)?$", "return 0; }", body)
        programs.append(f'namespace {page.entry} {{\n#line 1 "{page.path.stem}.cpp"\n{body}\n}}')
        calls.append(f'  if (wanted == "{page.entry}") return {page.entry}::main();')
    return "\n".join([*dict.fromkeys(includes), *programs, "int main(int, char** words) {",
                      "  const std::string_view wanted = words[1];", *calls, "  return 2;", "}\n"])


def lines_of(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


def compared(page, printed):
    """A violation where the page shows something else, for a reader of the page and the output."""
    shown, real = lines_of(page.output), lines_of(printed)
    if shown == real:
        return []
    return [f"{page.name}:{page.line}: prints something else than the page shows:",
            *(f"  the page     {line}" for line in shown), *(f"  the program  {line}" for line in real)]


def run(page, options, environment, executable):
    """The violations of one page."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        if page.language == "python":
            # The page's own lines, so that reports name them.
            (place / "program.py").write_text(page.program)
            command = [options.python, "program.py"]
        else:
            script = place / "program"
            script.write_text(f"#!/bin/sh\nexec '{executable}' {page.entry}\n")
            script.chmod(0o755)
            command = ["./program"]
        if page.commands:
            command = ["sh", "-e", "-c", page.commands]
        try:
            ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=100)
        except subprocess.TimeoutExpired:
            return [f"{page.name}:{page.line}: still runs after 100 s."]
    if ended.returncode != 0:
        return [f"{page.name}:{page.line}: ends with status {ended.returncode}: {ended.stdout}{ended.stderr}"]
    errors = [f"{page.name}:{page.line}: prints to standard error: {ended.stderr}"] if ended.stderr else []
    # Reports name Python programs by their whole path.
    return errors + compared(page, ended.stdout.replace(f"{folder}/", ""))


def build(pages, options, root, executable):
    """Compiles the C++ programs into one executable. Returns what the compiler complains about, or nothing."""
    if not pages:
        return ""
    unit = executable.with_suffix(".cpp")
    unit.write_text(unit_of(pages))
    # What the CMake targets tern::fake_cuda and tern::tern ask for, and where a shared library is found.
    paths = {f"-Wl,-rpath,{pathlib.Path(library).parent}" for library in options.libraries}
    ended = subprocess.run([options.compiler, "-std=c++20", "-Wall", "-Wextra", "-I", str(root / "include"), str(unit), "-o",
                            str(executable), "-Wl,--undefined=tern_fake_cuda", *options.libraries, *sorted(paths), "-pthread",
                            "-ldl"], capture_output=True, text=True, check=False)
    return ended.stderr if "warning" in ended.stderr else "" if ended.returncode == 0 else ended.stderr or "the compiler failed"


def missing_library(page, options, environment):
    """A sentence about a library that the page needs and this machine lacks, or None."""
    for library, question in LIBRARIES.items():
        if re.search(rf"^\s*import {library}\b", page.program, re.M):
            known = subprocess.run([options.python, "-c", question], env=environment, capture_output=True, check=False)
            if known.returncode != 0:
                return f"skipped: {page.name} needs {library}" + (" and a GPU" if "cuda" in question else "")
    return None


def anchor_of(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(root):
    """Links of the documentation to files and headings that do not exist."""
    count = 0
    violations = []
    elsewhere = [root / folder / "README.md" for folder in ("include/tern", "python", "tests/litmus")]
    for path in [*root.glob("*.md"), *elsewhere, *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text()
        # Code has brackets of its own.
        prose = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.M)
        prose = re.sub(r"`[^`\n]*`", "", prose)
        for match in LINK.finditer(prose):
            if urllib.parse.urlparse(match[1]).scheme:
                continue
            count += 1
            where = f"{path.relative_to(root).as_posix()}:{prose.count(chr(10), 0, match.start()) + 1}"
            name, _, anchor = match[1].partition("#")
            there = (path.parent / name) if name else path
            if not there.exists():
                violations.append(f"{where}: there is no '{match[1]}'.")
            elif anchor and there.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
                if anchor not in map(anchor_of, headings):
                    violations.append(f"{where}: '{name or path.name}' has no heading '#{anchor}'.")
    return count, violations


def unknown_functions(root):
    """Functions that the documentation names, as `name()`, and no source has."""
    known = set()
    for folder in ("include", "src", "python", "tests"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".hpp", ".h", ".cpp", ".py") and "__pycache__" not in path.parts:
                known.update(re.findall(r"\w+", path.read_text(errors="replace")))
    violations = []
    for path in [*root.glob("*.md"), root / "python/README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text()
        prose = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.M)
        if path.parent.name == "migrate":
            prose = re.sub(r"^\|[^|\n]*", "", prose, flags=re.M)  # names of the other library
        for match in re.finditer(r"`([^`\n]+\(\))`", prose):
            if not match[1].startswith("torch.") and not known.issuperset(re.findall(r"\w+", match[1])):
                line = prose.count("\n", 0, match.start()) + 1
                violations.append(f"{path.relative_to(root).as_posix()}:{line}: there is no function '{match[1]}'.")
    return violations


def missing_from_index(root, folder):
    """Pages that the index of their folder does not link."""
    index = (root / folder / "README.md").read_text()
    return [f"{folder}/README.md:1: does not link {path.name}." for path in sorted((root / folder).glob("*.md"))
            if path.name != "README.md" and f"]({path.name})" not in index]


def missing_from_overview(root):
    """Pages of the guide that docs/README.md does not link."""
    overview = (root / "docs/README.md").read_text()
    return [f"docs/README.md:1: does not link guide/{path.name}." for path in sorted((root / "docs/guide").glob("*.md"))
            if f"](guide/{path.name})" not in overview]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a folder for the compiled programs")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--libraries", nargs="+", default=[], help="what C++ programs link")
    parser.add_argument("--python", help="an interpreter that finds ternmem; without it, Python programs are left out")
    parser.add_argument("--tool", help="the tern command; without it, pages that call it are left out")
    parser.add_argument("--only", default="", help="a part of the names of the pages to run")
    options = parser.parse_args()
    root = options.root.resolve()

    links, violations = broken_links(root)
    pages = []
    for page in read_readme(root):
        (violations if isinstance(page, str) else pages).append(page)
    violations += missing_from_overview(root) + unknown_functions(root)
    for folder in FOLDERS:
        violations += missing_from_index(root, folder)
        for path in sorted((root / folder).glob("*.md")):
            if path.name != "README.md":
                page = read_page(root, path)
                (violations if isinstance(page, str) else pages).append(page)
    pages = [page for page in pages if options.only in page.name]

    environment = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
    tools = options.work / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name, target in (("tern", options.tool), ("python3", options.python)):
        (tools / name).unlink(missing_ok=True)
        if target:
            # A link to an interpreter would leave its environment.
            (tools / name).write_text(f"#!/bin/sh\nexec '{target}' \"$@\"\n")
            (tools / name).chmod(0o755)
    environment["PATH"] = f"{tools}{os.pathsep}{environment.get('PATH', '')}"

    left_out = []
    for page in list(pages):
        reason = None
        if page.language == "python":
            reason = (missing_library(page, options, environment) if options.python
                      else f"skipped: {page.name} needs the Python module")
        if not reason and "tern " in page.commands and not options.tool:
            reason = f"skipped: {page.name} needs the tern command"
        if reason:
            left_out.append(reason)
            pages.remove(page)

    # The compiler runs beside the Python programs, which come first.
    executable = options.work / "programs"
    in_python = [page for page in pages if page.language == "python"]
    in_cpp = [page for page in pages if page.language == "cpp"]
    with concurrent.futures.ThreadPoolExecutor(2) as workers:
        built = workers.submit(build, in_cpp, options, root, executable)
        for found in workers.map(lambda page: run(page, options, environment, executable), in_python):
            violations += found
        if built.result():
            violations.append(built.result())
            in_cpp = []
        for found in workers.map(lambda page: run(page, options, environment, executable), in_cpp):
            violations += found
    for line in (*left_out, *violations):
        print(line)
    print(f"{len(pages)} programs and {links} links of the documentation")
    sys.exit(1 if violations or not pages else 0)


main()
