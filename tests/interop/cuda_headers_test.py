"""Tern's memory resources compile beside the headers of CCCL and RMM.

Usage: cuda_headers_test.py ENVIRONMENT. Looks in the toolkit of the machine, and in the environment
that scripts/setup makes. Skipped where neither has the headers.
"""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/interop/cuda_headers.cpp"
TOOLKITS = (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda")


class Library(NamedTuple):
    name: str
    folders: list  # that have the headers, the first one CCCL

    @property
    def is_there(self):
        return (self.folders[0] / "cuda/memory_resource").is_file() and all(
            folder.is_dir() for folder in self.folders)


def libraries(environment):
    for toolkit in filter(None, dict.fromkeys(TOOLKITS)):
        include = pathlib.Path(toolkit, "include")
        yield Library(f"CCCL of {toolkit}", [include / "cccl", include])
    for packages in sorted(environment.glob("lib/python3*/site-packages")):
        cuda_13, cuda_12 = packages / "nvidia/cu13/include", packages / "nvidia/cuda_runtime/include"
        yield Library("CCCL for CUDA 13 from PyPI", [cuda_13 / "cccl", cuda_13])
        yield Library("CCCL for CUDA 12 from PyPI", [packages / "nvidia/cuda_cccl/include", cuda_12])
        rmm = packages / "librmm/include"
        yield Library("RMM from PyPI", [rmm / "rapids", rmm, packages / "rapids_logger/include", cuda_13])


def version(library):
    for line in (library.folders[0] / "cuda/std/__cccl/version.h").read_text().splitlines():
        if line.startswith("#define CCCL_VERSION "):
            number = int(line.split()[2])
            return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    return "of unknown version"


def compile_with(library, compiler, *options):
    return subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *options,
         f"-I{ROOT / 'include'}", *(f"-isystem{folder}" for folder in library.folders), str(SOURCE)],
        capture_output=True, text=True, check=False)


def check(library, compiler):
    """(the text to print, whether Tern compiles)"""
    text = f"{library.name} ({version(library)})"
    result = compile_with(library, compiler)
    if result.returncode == 0:
        return f"{text}: compiled", True
    if compile_with(library, compiler, "-DWITHOUT_TERN").returncode != 0:
        return f"{text}: left out, because {compiler} does not compile its headers", True
    return f"{text}:\n{result.stderr[:4000]}", False


def main():
    found = [library for library in libraries(pathlib.Path(sys.argv[1])) if library.is_there]
    if not found:
        print("skipped: there are no headers of CCCL here; scripts/setup tests installs them.")
        return 77
    compiler = shutil.which("g++") or shutil.which("clang++")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda library: check(library, compiler), found))
    print("\n".join(text for text, _ in results))
    return 0 if all(is_fine for _, is_fine in results) else 1


if __name__ == "__main__":
    sys.exit(main())
