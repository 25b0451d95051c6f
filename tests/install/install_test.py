"""Tern works installed, moved, as a subproject of a unity build, static, shared and in a program
that is linked without shared libraries; and a shared library exports namespace tern only.

The build under test is installed and used. The other kind of library (static or shared) comes from
the subproject, whose build is then installed and used too. Both kinds are made of the same objects,
so what the subproject wants compiled by the very command that the build under test ran is taken
from there (compiled.py); whatever differs is compiled.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import compiled

HERE = pathlib.Path(__file__).resolve().parent
# Headers that users of the package need not have.
FOREIGN = re.compile(r"/(fmt|nlohmann|CLI|CL|gtest|gmock)/|/cuda[\w.]*\.h\b")
PASSED_ON = re.compile(r"^(CMAKE_CXX_COMPILER|CMAKE_BUILD_TYPE|CMAKE_CXX_FLAGS\w*|CMAKE_PREFIX_PATH"
                       r"|TERN_\w+_SOURCE|TERN_WARNINGS_AS_ERRORS|CMAKE_GENERATOR"
                       r"|BUILD_SHARED_LIBS):\w+=(.*)$", re.M)


def run(*command, **keywords):
    """Runs a command and gives its output; shows it and ends the test if the command fails."""
    command = [str(part) for part in command]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False, **keywords)
    if result.returncode:
        sys.exit(f"{result.stdout}\n{' '.join(command)}\nended with {result.returncode}.")
    return result.stdout


def check(holds, sentence):
    if not holds:
        sys.exit(sentence)


def read_cache(build):
    return dict(PASSED_ON.findall((build / "CMakeCache.txt").read_text()))


def configure_and_build(project, build, cache, **definitions):
    inherited = {name: value for name, value in cache.items()
                 if name not in ("CMAKE_GENERATOR", "BUILD_SHARED_LIBS") and value}
    inherited.update(definitions)
    run("cmake", "-S", HERE / project, "-B", build, "-G", cache["CMAKE_GENERATOR"],
        *(f"-D{name}={value}" for name, value in inherited.items()))
    run("cmake", "--build", build, "--parallel", os.cpu_count())


def use_installed(kind, build, cache, work, scratch):
    """Installs the build, moves what was installed, and builds and runs the consumer with it."""
    first, prefix = scratch / f"{kind}-first", scratch / f"{kind}-moved"
    run("cmake", "--install", build, "--prefix", first)
    first.rename(prefix)
    check_package(kind, prefix, [build, first, HERE.parents[1]])
    check_headers(prefix, cache["CMAKE_CXX_COMPILER"])
    libraries = list(prefix.glob("lib*/**/libtern.*"))
    if kind == "shared":
        check_shared_library(next(path for path in libraries if path.suffix == ".so"))

    consumer = work / f"installed-{kind}"
    shutil.rmtree(consumer, ignore_errors=True)
    path = ";".join(filter(None, [str(prefix), cache.get("CMAKE_PREFIX_PATH")]))
    configure_and_build("installed", consumer, cache, CMAKE_PREFIX_PATH=path)
    print(f"installed {kind}:", run(consumer / "consumer").strip())
    print(f"installed {kind}:", run(consumer / "fake_cuda").strip())
    if kind == "static" and can_link_statically(cache["CMAKE_CXX_COMPILER"], scratch):
        static = work / "installed-without-shared-libraries"
        shutil.rmtree(static, ignore_errors=True)
        configure_and_build("installed", static, cache, CMAKE_PREFIX_PATH=path,
                            CONSUMER_IS_STATIC="ON")
        said = run(static / "consumer")
        run(static / "fake_cuda")
        for backend in ("cuda", "opencl"):
            check(f"backend '{backend}' is not available: this program is statically linked"
                  in said, f"the program that is linked with -static says: {said}")
        print("installed static, linked with -static: no driver is loaded")
    if (prefix / "bin/tern").exists():
        run(prefix / "bin/tern", "--help")


def can_link_statically(compiler, scratch):
    """Has the machine the static C and C++ libraries?"""
    empty = subprocess.run([compiler, "-static", "-x", "c++", "-", "-o", scratch / "empty"],
                           input="#include <iostream>\nint main() { std::cout << 1; }",
                           capture_output=True, text=True, check=False)
    return empty.returncode == 0


def check_package(kind, prefix, absent):
    """The package has the right kind of library, and says nothing of where it was made."""
    names = {path.name for path in prefix.rglob("libtern*")}
    check({"libtern.so" if kind == "shared" else "libtern.a", "libtern_fake_cuda.a"} <= names,
          f"the {kind} package holds {sorted(names)}.")
    for path in prefix.rglob("*.cmake"):
        text = path.read_text()
        for folder in absent:
            found = re.search(rf"(?<![\w}}/.-]){re.escape(str(folder))}(?![\w.-])", text)
            check(not found, f"{path.name} holds the absolute path {folder}.")
        check("fmt" not in text, f"{path.name} mentions fmt, which is private.")


def check_headers(prefix, compiler):
    """A program that includes every installed header reads none of another project."""
    # The fixture for GoogleTest and the headers for MPI say in their names what they need.
    headers = sorted(path.relative_to(prefix / "include").as_posix()
                     for path in (prefix / "include").rglob("*.h*")
                     if not path.name.endswith("_gtest.hpp") and not path.name.startswith("mpi"))
    check(headers, "the package has no headers.")
    text = "".join(f"#include <{header}>\n" for header in headers)
    read = run(compiler, "-std=c++20", "-x", "c++", "-M", "-I", prefix / "include", "-", input=text)
    foreign = [name for name in read.split() if FOREIGN.search(name)]
    check(not foreign, f"installed headers include {', '.join(foreign)}.")


def check_shared_library(library):
    exported = run("nm", "-D", "--defined-only", "-C", library).splitlines()
    names = [line.split(maxsplit=2)[2] for line in exported]
    ours = re.compile(r"((vtable|VTT|typeinfo|typeinfo name|guard variable|TLS \w+ function) for "
                      r"|(non-)?virtual thunk to |covariant return thunk to )?tern::")
    # Functions whose printed name starts with their return type are template instantiations.
    strangers = [name for name in names if not ours.match(name) and " tern::" not in name]
    check(names, f"{library.name} exports nothing.")
    check(not strangers, f"{library.name} exports names of others: {', '.join(strangers[:5])}.")
    dynamic = run("readelf", "--dynamic", "--program-headers", "--wide", library)
    for mark in ("GNU_RELRO", "BIND_NOW", "NODELETE"):
        check(re.search(rf"\b{mark}\b", dynamic) or (mark == "BIND_NOW" and "NOW" in dynamic),
              f"{library.name} lacks {mark}.")
    print(f"shared library: {len(names)} exported names, all of tern")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build to install")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="where builds are kept")
    options = parser.parse_args()
    cache = read_cache(options.build)
    is_shared = cache["BUILD_SHARED_LIBS"].upper() in ("ON", "1", "TRUE", "YES", "Y")
    this, other = ("shared", "static") if is_shared else ("static", "shared")

    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        use_installed(this, options.build, cache, options.work, scratch)

        subproject = options.work / f"subproject-{other}"
        shutil.rmtree(subproject, ignore_errors=True)
        notes = scratch / "objects.json"
        compiled.write_notes(notes, options.build)
        launcher = [sys.executable, "-B", HERE / "compiled.py", notes]
        # A parent that puts its sources together does not put ours together.
        configure_and_build("subproject", subproject, cache, TERN_INSTALL="ON",
                            CMAKE_UNITY_BUILD="ON",
                            BUILD_SHARED_LIBS="OFF" if is_shared else "ON",
                            CMAKE_CXX_COMPILER_LAUNCHER=";".join(map(str, launcher)))
        print(f"subproject {other}:", run(subproject / "consumer").strip())
        print(f"subproject {other}:", run(subproject / "fake_cuda").strip())
        taken = pathlib.Path(f"{notes}.taken")
        print(f"subproject {other}: {len(taken.read_text().splitlines()) if taken.is_file() else 0} "
              "objects taken from the build under test")
        use_installed(other, subproject, cache, options.work, scratch)


main()
