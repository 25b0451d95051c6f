"""Each public header compiles alone, and twice; and all of them together with every other compiler."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tree

HOST_FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow",
              "-Wconversion", "-Wsign-conversion", "-Werror"]
# What compiles alone for one of them does for all: the first that is there sees each header by itself, the
# others see all at once.
FLAGS = {
    "g++": ["-x", "c++", *HOST_FLAGS],
    "clang++": ["-x", "c++", *HOST_FLAGS],
    "nvcc": [],
}


# nvcc does not make == from a defaulted <=>, and says so only when it finishes the code.
CUDA_USES = """
bool uses(tern::StreamRef a, tern::StreamRef b, tern::Mark m, tern::Mark n, tern::Place p) {
  return a == b && m == n && p == tern::Place::host() && p.device_id() == tern::DeviceId{1};
}
"""


def compile_uses(root, headers, command, folder):
    unit = folder / "uses.cu"
    unit.write_text("".join(f'#include "{h.relative_to(root / "include").as_posix()}"\n'
                            for h in headers) + CUDA_USES)
    result = subprocess.run([command, "-x", "cu", "-std=c++20", "-c", "-Werror", "all-warnings", "-I",
                             str(root / "include"), *system_folders(), "-o", str(folder / "uses.o"), str(unit)],
                            capture_output=True, text=True, check=False)
    lines = (result.stderr + result.stdout).splitlines()
    if result.returncode == 0 and not any("warning" in line for line in lines):
        return None
    reason = next((line for line in lines if "error" in line or "warning" in line), "no message")
    return f"include/tern:1: nvcc cannot use the headers: {reason.strip()}"


def system_folders():
    return [option for folder in tree.mpi_folders() or [] for option in ("-isystem", folder)]


def find_compiler(name):
    return shutil.which(name) or (name == "nvcc" and shutil.which("/usr/local/cuda/bin/nvcc")) or None


def compile_them(root, headers, compiler, command, folder, name="tern"):
    """None, or the violation, which names the first line the compiler complained about."""
    names = [header.relative_to(root / "include").as_posix() for header in headers]
    name = names[0] if len(names) == 1 else name
    unit = folder / f"{name.replace('/', '-')}-{compiler}.cpp"
    unit.write_text("".join(f'#include "{each}"\n' for each in names + names))
    result = subprocess.run(
        [command, *FLAGS[compiler], "-I", str(root / "include"), *system_folders(), str(unit)],
        capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    lines = (result.stderr + result.stdout).splitlines()
    reason = next((line for line in lines if "error" in line), "no message").strip()
    how = "alone" if len(names) == 1 else "together"
    return f"include/{name}:1: does not compile {how} with {compiler}: {reason}"


def main():
    options = tree.arguments(__doc__, compiler=dict(action="append", choices=list(FLAGS)))
    root = options.root.resolve()
    headers = list(tree.sources(root, "include/tern"))
    with_mpi = [header for header in headers if tree.needs_mpi(root, header)]
    headers = [header for header in headers if header not in with_mpi]
    if tree.mpi_folders() is None:
        print(f"skipped {len(with_mpi)} headers that need <mpi.h>: there is no MPI library")
        with_mpi = []
    found = {name: find_compiler(name) for name in options.compiler or FLAGS}
    for name in [name for name, command in found.items() if not command]:
        print(f"skipped {name}: it is not installed")
        del found[name]
    if not found or not headers:
        sys.exit(f"include/tern:1: {len(headers)} headers and {len(found)} compilers to check them with.")

    with tempfile.TemporaryDirectory() as folder:
        hosts = [name for name in found if name != "nvcc"]
        jobs = [(root, headers, name, found[name], pathlib.Path(folder)) for name in hosts[1:]]
        jobs += [(root, [header], name, found[name], pathlib.Path(folder))
                 for name in hosts[:1] for header in headers]
        # Those that need <mpi.h> include each other, and take long: all of them at once.
        if with_mpi:
            jobs += [(root, with_mpi, name, found[name], pathlib.Path(folder), "tern/interop/mpi") for name in hosts]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            uses = "nvcc" in found and pool.submit(compile_uses, root, headers + with_mpi, found["nvcc"],
                                                   pathlib.Path(folder))
            results = list(pool.map(lambda job: compile_them(*job), jobs))
            results.append(uses and uses.result())
    tree.finish(filter(None, results), f"{len(headers) + len(with_mpi)} headers with {', '.join(found)}")


main()
