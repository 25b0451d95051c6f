"""Tern works installed, moved, as a subproject of a unity build, static, shared and in a program
that is linked without shared libraries; and a shared library exports namespace tern and the C API only. The
folders have blanks in their names. A second version of Tern on the machine is refused or kept apart.

The build under test is installed and used. The other kind of library (static or shared) comes from
the subproject, whose build is then installed and used too.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Headers that users of the package need not have.
FOREIGN = re.compile(r"/(fmt|nlohmann|CLI|CL|gtest|gmock)/|/cuda[\w.]*\.h\b")
VERSION = re.search(r'^#define TERN_VERSION "(\S+)"', (HERE.parents[1] / "include/tern/core/version.hpp").read_text(), re.M)[1]
MINOR = VERSION.rpartition(".")[0]
OLDER = "0.0"  # the first two numbers of an older version
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

    check_second_version(kind, prefix, cache, scratch)
    consumer = work / f"installed-{kind}"
    shutil.rmtree(consumer, ignore_errors=True)
    path = ";".join(filter(None, [str(prefix), cache.get("CMAKE_PREFIX_PATH")]))
    configure_and_build("installed", consumer, cache, CMAKE_PREFIX_PATH=path)
    print(f"installed {kind}:", run(consumer / "consumer").strip())
    print(f"installed {kind}:", run(consumer / "fake_cuda").strip())
    print(f"installed {kind}:", run(consumer / "consumer_in_c").strip())
    if kind == "static" and can_link_statically(cache["CMAKE_CXX_COMPILER"], scratch):
        static = work / "installed-without-shared-libraries"
        shutil.rmtree(static, ignore_errors=True)
        configure_and_build("installed", static, cache, CMAKE_PREFIX_PATH=path,
                            CONSUMER_IS_STATIC="ON")
        said = run(static / "consumer")
        run(static / "fake_cuda")
        run(static / "consumer_in_c")
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


def copy_as_older_version(prefix, older):
    """A copy of an installed Tern that calls itself older. Its library has the code of this version."""
    shutil.copytree(prefix, older, symlinks=True)
    for path in [older / "include/tern/core/version.hpp", *older.rglob("tern*.cmake"), *older.rglob("tern.pc")]:
        text = path.read_text().replace(MINOR.replace(".", "_"), OLDER.replace(".", "_"))
        path.write_text(text.replace(VERSION, f"{OLDER}.0"))


def fails(*command, **keywords):
    """Runs a command that must fail and returns its output on one line."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, **keywords)
    check(done.returncode, f"{' '.join(map(str, command))}\nshould have failed, and printed {done.stdout}")
    return " ".join(done.stdout.split())


def check_second_version(kind, prefix, cache, scratch):
    """With two versions in two prefixes, a program gets one of them or a sentence about both."""
    older, project = scratch / f"{kind}-older", scratch / f"{kind}-project"
    copy_as_older_version(prefix, older)
    compiler = cache["CMAKE_CXX_COMPILER"]

    def configure(*calls, path=()):
        project.mkdir(exist_ok=True)
        (project / "CMakeLists.txt").write_text("\n".join(["cmake_minimum_required(VERSION 3.25)",
                                                           "project(two LANGUAGES CXX)", *calls]))
        return ["cmake", "-U", "tern_DIR", "-S", project, "-B", project / "build", f"-DCMAKE_CXX_COMPILER={compiler}",
                f"-DCMAKE_PREFIX_PATH={';'.join(map(str, path))}"]

    wanted = f"find_package(tern {MINOR} REQUIRED)"
    run(*configure(wanted, f'if(NOT tern_DIR MATCHES "{kind}-moved")', "  message(FATAL_ERROR ${tern_DIR})",
                   "endif()", path=[older, prefix]))
    if kind == "static":  # shared libraries have the same files for CMake
        said = fails(*configure(wanted, path=[older]))
        check(f"ternConfig.cmake, version: {OLDER}.0" in said, f"with the older version alone, CMake says: {said}")
        said = fails(*configure(f'find_package(tern REQUIRED PATHS "{older}" NO_DEFAULT_PATH)', "unset(tern_DIR CACHE)",
                                f'find_package(tern REQUIRED PATHS "{prefix}" NO_DEFAULT_PATH)'))
        check(f"This project already has Tern {OLDER}.0, and " in said and "Use one version: set tern_DIR" in said,
              f"with both versions in one project, CMake says: {said}")

    # The headers of one and the library of the other.
    library = next(path for path in prefix.glob("lib*/**/libtern.*") if path.suffix in (".a", ".so"))
    program = ["-std=c++20", HERE / "consumer.cpp", library, "-pthread", "-ldl", "-o", scratch / "mixed"]
    said = fails(compiler, "-I", older / "include", *program)
    check("undefined" in said and f"library_of_version_{OLDER.replace('.', '_')}" in said,
          f"with headers of another version, the linker says: {said}")
    if kind == "shared":
        # A plug-in that was linked with an older library is loaded into a program with this one.
        exports = HERE.parents[1] / "cmake/tern.map"
        (scratch / "older.map").write_text(exports.read_text().replace(f"TERN_{MINOR}", f"TERN_{OLDER}"))
        link = [compiler, "-x", "c++", "-", "-x", "none", "-fPIC"]
        for name, value, script in (("older", 1, scratch / "older.map"), ("newer", 2, exports)):
            run(*link, "-shared", f"-Wl,--version-script={script}", f"-Wl,-soname,lib{name}.so", "-o", scratch / f"lib{name}.so",
                input=f'namespace tern {{ [[gnu::visibility("default")]] int version() {{ return {value}; }} }}')
        run(*link, "-shared", scratch / "libolder.so", "-o", scratch / "libplugin.so",
            input='namespace tern { int version(); }\nextern "C" int plugin() { return tern::version(); }')
        run(*link, scratch / "libnewer.so", scratch / "libplugin.so", f"-Wl,-rpath-link,{scratch}", "-o", scratch / "both",
            input='namespace tern { int version(); }\nextern "C" int plugin();\n'
                  "int main() { return 10 * tern::version() + plugin() == 21 ? 0 : 1; }")
        run(scratch / "both", env={**os.environ, "LD_LIBRARY_PATH": str(scratch)})
    print(f"installed {kind}: a second version is refused or kept apart")


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
    exported = run("nm", "-D", "--defined-only", "--without-symbol-versions", "-C", library).splitlines()
    versions = [line.split()[2] for line in exported if " A " in line]
    check(len(versions) == 1 and versions[0].startswith("TERN_"), f"{library.name} has the symbol versions {versions}.")
    names = [line.split(maxsplit=2)[2] for line in exported if " A " not in line]
    ours = re.compile(r"tern_\w+$|((vtable|VTT|typeinfo|typeinfo name|guard variable|TLS \w+ function) for "
                      r"|(non-)?virtual thunk to |covariant return thunk to )?tern::")
    # Functions whose printed name starts with their return type are template instantiations.
    strangers = [name for name in names if not ours.match(name) and " tern::" not in name]
    check(names, f"{library.name} exports nothing.")
    check("tern_open_device" in names, f"{library.name} lacks the C API.")
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

    with tempfile.TemporaryDirectory(prefix="tern in a path with blanks ") as folder:
        scratch = pathlib.Path(folder)
        use_installed(this, options.build, cache, options.work, scratch)

        subproject = options.work / f"subproject-{other}"
        shutil.rmtree(subproject, ignore_errors=True)
        # A parent that puts its sources together does not put ours together; the library does that itself here.
        configure_and_build("subproject", subproject, cache, TERN_INSTALL="ON",
                            CMAKE_UNITY_BUILD="ON", TERN_QUICK_BUILD="all",
                            BUILD_SHARED_LIBS="OFF" if is_shared else "ON")
        print(f"subproject {other}:", run(subproject / "consumer").strip())
        print(f"subproject {other}:", run(subproject / "fake_cuda").strip())
        use_installed(other, subproject, cache, options.work, scratch)


main()
