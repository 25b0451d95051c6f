"""Writes the stubs of the extension module: ``python python/stubs.py [--check]``.

nanobind's stubgen reads the signatures from the built module. This program completes them: nanobind
writes ``object`` where a binding builds a Python object by hand, and it does not know the bases of exceptions.
With ``--check`` nothing is written, and the exit status says whether the stubs are in step: 0 yes, 1 no, 2 that
they were written with another version of nanobind or Python, which words them differently.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys
import tempfile

import nanobind

folder = pathlib.Path(__file__).resolve().parent
if not any((folder / "ternmem").glob("_core*.so")):
    # The module lies elsewhere, and PYTHONPATH or the interpreter knows where.
    sys.path[:] = [path for path in sys.path if pathlib.Path(path).resolve() != folder]
stubs = folder / "ternmem" / "_core"

versions = f"nanobind {nanobind.__version__} and Python {sys.version_info.major}.{sys.version_info.minor}"

# Results that bindings return as a plain Python object, by name.
ARRAY = "npt.NDArray[typing.Any]"
RESULTS = {
    "array": ARRAY,
    "host": ARRAY,
    "numpy": ARRAY,
    "to_numpy": ARRAY,
    "__array__": ARRAY,
    "allocate": "typing.Self",
    "fill": "typing.Self",
    "Stream.__enter__": "typing.Self",
    "Range.__enter__": "typing.Self",
    "HostLease.__enter__": ARRAY,
    "ManagedHostLease.__enter__": ARRAY,
    "histogram": "dict[int, int]",
    "handle": "int",
    "limit_bytes": "int | None",
    "site": "str | None",
    "shape": "tuple[int, ...]",
    "findings": "list[Finding]",
    "leaks": "list[Finding]",
    "capabilities": "list[str]",
    "__dlpack_device__": "tuple[int, int]",
    "__cuda_stream__": "tuple[int, int]",
    "from_dlpack": "Buffer | StridedBuffer",
}
# What stubgen cannot see, by class.
MEMBERS = {
    "Error": ["code: str", "site: str | None", "def __getattr__(self, name: str) -> typing.Any: ..."],
    "Mark": ["def __await__(self) -> collections.abc.Generator[object, None, None]: ..."],
    "Buffer": ["def __buffer__(self, flags: int, /) -> memoryview: ..."],
    "HostMemory": ["def __buffer__(self, flags: int, /) -> memoryview: ..."],
}
GENERIC = {"dict": "dict[str, typing.Any]", "list": "list[typing.Any]", "tuple": "tuple[typing.Any, ...]",
           "os.PathLike": "os.PathLike[str]"}


def exceptions() -> list[str]:
    """The exception classes of the module, bases first."""
    from ternmem import _core

    lines = []
    for name, value in vars(_core).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [base.__name__ if base.__module__ == "ternmem" else f"builtins.{base.__name__}"
                     for base in value.__bases__]
            lines.append(f"class {name}({', '.join(bases)}):")
            lines += [*docstring(value.__doc__ or ""), *(f"    {member}" for member in MEMBERS.get(name, [])), ""]
    return lines


def docstring(text: str) -> list[str]:
    """The lines of a docstring of a class."""
    first, *rest = inspect.cleandoc(text).splitlines() or [""]
    if not rest:
        return [f'    """{first}"""']
    return [f'    """{first}', *(f"    {line}".rstrip() for line in rest), '    """']


def completed(line: str, scope: str) -> str:
    """A line of a stub with the types that stubgen left open."""
    signature = re.match(r"(\s*)def (\w+)\((.*)\) -> (.*?):( \.\.\.)?$", line)
    if signature is None:
        return line
    indent, name, arguments, result, rest = signature.groups()
    if result in ("object", "dict", "list", "tuple"):
        fallback = GENERIC.get(result, "typing.Any")
        result = RESULTS.get(f"{scope}.{name}", RESULTS.get(name, fallback))
    arguments = re.sub(r"\*(\w+)(?=[,)]|$)", r"*\1: object", arguments)
    arguments = re.sub(r"(: |\| )(dict|list|tuple|os\.PathLike)\b(?!\[)", lambda found: found[1] + GENERIC[found[2]], arguments)
    return f"{indent}def {name}({arguments}) -> {result}:{rest or ''}"


def finished(text: str, is_top: bool) -> str:
    text = re.sub(r"^from ternmem import \([^)]*\)\n", "", text, flags=re.M)
    # Methods that the package adds to classes of the module.
    text = re.sub(r"^from ternmem\.(?!_core\b)\w+ import (\([^)]*\)|.*)\n", "", text, flags=re.M)
    text = re.sub(r"^    (__await__|_repr_html_)\b.*\n", "", text, flags=re.M)
    # Python 3.12 and newer show this slot as a method. MEMBERS has it with types.
    text = re.sub(r'\n    def __buffer__\(self, flags, /\):\n        """\n[^"]*"""\n', "", text)
    lines: list[str] = []
    scope, quotes = "", -1  # quotes: of the docstring of a class whose members are added, or -1
    for line in text.rstrip().splitlines():
        if found := re.match(r"class (\w+)", line):
            scope = found[1]
            quotes = 0 if scope in MEMBERS else -1
        lines.append(completed(line, scope))
        if quotes >= 0 and not found:
            quotes += line.count('"""')
            if quotes == 2:
                lines += ["", *(f"    {member}" for member in MEMBERS[scope])]
                quotes = -1
    head = [f"# Written by python/stubs.py with {versions}. Do not edit.", "import builtins", "import collections.abc", "import typing", "",
            "import numpy.typing as npt"]
    if is_top:
        lines.append("\n__version__: str")
    return "\n".join([*head, *lines, "", *(exceptions() if is_top else [])]).rstrip() + "\n"


def made() -> dict[str, str]:
    """The stubs by file name."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-r", "-P", "-m", "ternmem._core", "-O", scratch], cwd=scratch,
                       check=True)
        return {path.name: finished(path.read_text(), path.name == "__init__.pyi")
                for path in sorted((pathlib.Path(scratch) / "_core").glob("*.pyi"))}


def main(arguments: list[str]) -> int:
    written = {path.name: path.read_text() for path in sorted(stubs.glob("*.pyi"))}
    wanted = made()
    if written == wanted:
        return 0
    if "--check" in arguments:
        if not all(f"with {versions}." in text for text in written.values()):
            print(f"The stubs were written with other versions than {versions}.")
            return 2
        print("The stubs in python/ternmem/_core are not those of the built module: run python python/stubs.py.")
        return 1
    stubs.mkdir(exist_ok=True)
    for name in written.keys() - wanted.keys():
        (stubs / name).unlink()
    for name, text in wanted.items():
        (stubs / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
