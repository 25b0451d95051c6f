"""The same seed gives the same trace with every compiler and at every level of optimisation.

Compiles what the simulated device needs, and trace_hash.cpp, and compares what the programs print: g++ without
optimisation and clang++ with, or with --all both ways of both. A folder is compiled as one unit, which takes a third
of the time; so the private names of the sources of one folder must differ.
"""

import argparse
import concurrent.futures
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
UNITS = {
    "core": ["core/*.cpp"],
    "trace": ["trace/*.cpp"],
    "device": ["device/*.cpp"],
    "sim": ["backends/sim/*.cpp", "backends/kernel_launch.cpp", "backends/memory_file.cpp",
            "backends/device_spec.cpp", "backends/cuda/fake_cuda.cpp"],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--include", default="", help="where {fmt} is, as paths between colons")
    parser.add_argument("--all", action="store_true", help="all four, which takes minutes")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args()


def write_units(root, folder):
    """One file per folder that includes its sources, and one for the program."""
    units = []
    for name, patterns in UNITS.items():
        sources = sorted(path for pattern in patterns for path in (root / "src").glob(pattern))
        if not sources:
            sys.exit(f"src has no sources for the unit '{name}' any more.")
        units.append(folder / f"{name}.cpp")
        units[-1].write_text("".join(f'#include "{path}"\n' for path in sources))
    units.append(folder / "program.cpp")
    units[-1].write_text(f'#include "{root}/tools/device_program.cpp"\n'
                         f'#include "{root}/tests/determinism/trace_hash.cpp"\n')
    return units


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    options = arguments()
    variants = [("clang++", "-O2"), ("g++", "-O0")]
    if options.all:
        variants += [("g++", "-O2"), ("clang++", "-O0")]
    absent = [compiler for compiler, _ in variants if shutil.which(compiler) is None]
    if absent:
        print(f"skipped: there is no {absent[0]} here.")
        return SKIPPED
    root = options.root.resolve()
    flags = ["-std=c++20", "-w", "-pthread", "-DFMT_HEADER_ONLY=1", f"-I{root}/include", f"-I{root}/src",
             f"-I{root}"] + [f"-idirafter{path}" for path in options.include.split(":") if path]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        units = write_units(root, folder)
        objects = {variant: [folder / f"{unit.stem}{''.join(variant)}.o" for unit in units] for variant in variants}
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            compiled = [pool.submit(run, [variant[0], variant[1], *flags, "-c", unit, "-o", target])
                        for variant in variants for unit, target in zip(units, objects[variant])]
            for one in compiled:
                one.result()
        hashes = {}
        for variant in variants:
            program = folder / "".join(variant)
            run([variant[0], *objects[variant], "-pthread", "-ldl", "-o", program])
            # Twice, because addresses differ from run to run and must not show.
            for turn in ("first", "second"):
                hashes[(*variant, turn)] = run([program]).strip()
    for variant, value in hashes.items():
        print(value, *variant)
    if len(set(hashes.values())) != 1:
        print("the same seeds give different traces: something depends on the compiler, on addresses, or on the "
              "order of a hash table.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
