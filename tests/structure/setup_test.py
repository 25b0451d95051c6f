"""The scripts say what to do on a machine that lacks something. They run on stand-ins, in a folder with blanks in its name.

The cases: an old CMake, no root, no network, missing packages, a read-only tree, an old compiler.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tree

# Programs of every system that the scripts call.
REAL = ("bash", "cat", "chmod", "dirname", "env", "grep", "head", "mkdir", "mktemp", "rm", "sed", "sort", "tail", "tee", "timeout",
        "uname", "xargs", "printf", "nproc")
NOBODY = 65534

INSTALLED = "#!/bin/sh\necho 'install ok installed'\n"
MISSING = "#!/bin/sh\necho 'unknown ok not-installed'\n"
ROOT = "#!/bin/sh\necho 0\n"
USER = "#!/bin/sh\necho 1000\n"
SUCCEEDS = "#!/bin/sh\nexit 0\n"
PASSWORD = '#!/bin/sh\n[ "$1" = -n ] && echo "sudo: a password is required" >&2 && exit 1\nexec sleep 100\n'
NEW_CMAKE = "#!/bin/sh\necho 'cmake version 3.25.1'\n"
OLD_CMAKE = "#!/bin/sh\necho 'cmake version 3.18.4'\n"
# Without a network, apt-get update succeeds with warnings if it has older lists.
APT_WITHOUT_NETWORK = """#!/bin/sh
for word; do
  case $word in
    update) echo "Temporary failure resolving" >&2 ; exit 100 ;;
    install) echo "Unable to fetch some archives" >&2 ; exit 100 ;;
  esac
done
"""
APT_WITH_OLD_LISTS = APT_WITHOUT_NETWORK.replace("exit 100 ;;", "exit 0 ;;", 1)
# An interpreter whose environments have a pip without a network.
PYTHON_WITHOUT_NETWORK = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin" && printf '#!/bin/sh\\necho no network >&2\\nexit 1\\n' >"$3/bin/python3" && chmod +x "$3/bin/python3"
fi
"""

COMMANDS = {"g++": SUCCEEDS, "ninja": SUCCEEDS, "cmake": NEW_CMAKE, "dpkg-query": INSTALLED, "id": ROOT,
            "apt-get": SUCCEEDS, "python3": SUCCEEDS, "doxygen": SUCCEEDS}
SOURCES = "TERN_CMAKE_ARGS='-DTERN_FMT_SOURCE=FOLDER -DTERN_CLI11_SOURCE=FOLDER -DTERN_NLOHMANN_JSON_SOURCE=FOLDER'"

BUILD_FAILS = """#!/bin/sh
case $1 in
  --version) echo 'cmake version 3.25.1' ;;
  --build) echo '1 2 Building a.cpp.o' && echo 'a.cpp:1: error: what went wrong' && exit 1 ;;
esac
"""

# (what is wrong, the command, stand-ins that differ, whether it fails, sentences in its output)
CASES = [
    ("nothing", ["scripts/setup", "build"], {}, False, []),
    ("an old CMake", ["scripts/setup", "build"], {"cmake": OLD_CMAKE}, True,
     ["Tern needs CMake 3.25 or newer", "is version 3.18.4", "pip install cmake"]),
    ("a CMake that does not run", ["scripts/setup", "build"], {"cmake": "#!/bin/sh\nexit 1\n"}, True,
     ["Tern needs CMake 3.25 or newer", "is version unknown"]),
    ("an old CMake in the packages", ["scripts/setup", "build"], {"cmake": OLD_CMAKE, "g++": None}, True,
     ["Installing g++", "Tern needs CMake 3.25 or newer"]),
    ("no root", ["scripts/setup", "build"], {"id": USER, "dpkg-query": MISSING}, True,
     ["needs root or sudo: libfmt-dev", "Ask an administrator to run: apt-get install libfmt-dev", SOURCES]),
    ("no root, and a password that nobody can enter", ["scripts/setup", "build"],
     {"id": USER, "dpkg-query": MISSING, "sudo": PASSWORD}, True, ["a password is required", "by other means", SOURCES]),
    ("no network", ["scripts/setup", "build"], {"dpkg-query": MISSING, "apt-get": APT_WITHOUT_NETWORK}, True,
     ["Temporary failure resolving", "apt-get update failed", "Without a network", SOURCES]),
    ("no network, and old lists of packages", ["scripts/setup", "build"],
     {"dpkg-query": MISSING, "apt-get": APT_WITH_OLD_LISTS}, True,
     ["Unable to fetch", "apt-get could not install: libfmt-dev", "Without a network", SOURCES]),
    ("no network, and a command is missing", ["scripts/setup", "build"], {"ninja": None, "apt-get": APT_WITHOUT_NETWORK}, True,
     ["These packages are missing: ninja-build"]),
    ("no apt-get", ["scripts/setup", "build"], {"dpkg-query": MISSING, "apt-get": None}, True,
     ["there is no apt-get", "Install the packages of your system", SOURCES]),
    ("no network for Python", ["scripts/setup", "docs"], {"python3": PYTHON_WITHOUT_NETWORK}, False,
     ["could not be installed (see build/peers.log)", "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"]),
    ("no network for the site", ["scripts/docs"], {"python3": PYTHON_WITHOUT_NETWORK}, True,
     ["Sphinx, Breathe, MyST or Furo is missing", "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER scripts/docs"]),
    ("a read-only tree", ["scripts/setup", "build"], {"read-only": "whole"}, True,
     ["a tree of Tern/build', which cannot be written to", "Copy the tree", "cmake -S '"]),
    ("a read-only tree for packages", ["bash", "-c", f"'{sys.executable}' scripts/packages conan"], {"read-only": "a file"}, True,
     ["a tree of Tern/build', which cannot be written to", "Copy the tree"]),
    ("a read-only tree for a GPU", ["scripts/gpu-test"], {"read-only": "whole"}, True, ["which cannot be written to"]),
    ("a read-only tree with a build folder", ["scripts/docs"], {"read-only": "with build"}, True, ["which cannot be written to"]),
    ("a build that fails", ["scripts/quickstart"], {"cmake": BUILD_FAILS}, True, ["a.cpp:1: error: what went wrong"]),
    ("blanks in a value", ["bash", "-c", "source scripts/progress.sh; configure dev -DA=1; cat build/dev/configured_with.txt"],
     {"TERN_CMAKE_ARGS": "-DB='2 3' -DC=4", "cmake": '#!/bin/sh\nprintf "[%s]" "$@"\n'}, False,
     ["-DA=1 -DB=2 3 -DC=4"]),
    ("blanks in a value that fails", ["bash", "-c", "source scripts/progress.sh; configure dev"],
     {"TERN_CMAKE_ARGS": "-DB='2 3'", "cmake": '#!/bin/sh\nprintf "[%s]" "$@"\nexit 1\n'}, True, ["[--preset][dev][-DB=2 3]"]),
]


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def run_on_stand_ins(root, folder, command, different):
    """The status of a command in a copy of the scripts, and its output."""
    copy = folder / "a tree of Tern"
    (copy / "bin").mkdir(parents=True)
    shutil.copytree(root / "scripts", copy / "scripts")
    for name in ("CMakeLists.txt", "include/tern/core/version.hpp"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, copy / name)
    for name in REAL:
        (copy / "bin" / name).symlink_to(shutil.which(name))
    for name, text in {**COMMANDS, **different}.items():
        if text and name not in ("read-only", "TERN_CMAKE_ARGS"):
            write_program(copy / "bin" / name, text)
    keywords = {}
    if different.get("read-only") == "a file":  # also for root, and for an interpreter that others may not run
        (copy / "build").write_text("")
    elif "read-only" in different:
        if different["read-only"] == "with build":
            (copy / "build").mkdir(mode=0o555)
        folder.chmod(0o755)
        copy.chmod(0o555)
        if os.geteuid() == 0:  # root may write everywhere
            keywords = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    variables = {"PATH": str(copy / "bin"), "HOME": str(folder)}
    if "TERN_CMAKE_ARGS" in different:
        variables["TERN_CMAKE_ARGS"] = different["TERN_CMAKE_ARGS"]
    (bash, *words) = command if command[0] == "bash" else ["bash", *command]
    done = subprocess.run([copy / "bin" / bash, *words], cwd=copy, env=variables, stdin=subprocess.DEVNULL, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, **keywords)
    copy.chmod(0o755)
    return done.returncode, done.stdout


def violations(root):
    for wrong, command, different, is_failing, sentences in CASES:
        with tempfile.TemporaryDirectory() as folder:
            status, output = run_on_stand_ins(root, pathlib.Path(folder), command, different)
        missing = [sentence for sentence in sentences if sentence not in output]
        if (status != 0) != is_failing or missing or (not sentences and output):
            yield f"{command[0]}:1: with {wrong}, {command} ends with {status}, lacks {missing}, and prints: {output}"
    yield from old_compiler(root)
    yield from presets(root)


def presets(root):
    """An older CMake must be able to read the presets, because it names the version that it needs only after them."""
    found = json.loads((root / "CMakePresets.json").read_text())
    if found["version"] > 3 or "cmakeMinimumRequired" in found:
        yield ("CMakePresets.json:1: CMake 3.21 cannot read version 4 and newer, and refuses 'cmakeMinimumRequired' without the "
               "version that it needs. Leave both to cmake_minimum_required in CMakeLists.txt.")


def old_compiler(root):
    """Configures with a g++ that calls itself version 11."""
    compiler = shutil.which("g++")
    if not compiler or not shutil.which("cmake"):
        return
    with tempfile.TemporaryDirectory() as folder:
        older = pathlib.Path(folder) / "g++"
        write_program(older, f'#!/bin/sh\nexec {compiler} -U__GNUC__ -D__GNUC__=11 "$@"\n')
        done = subprocess.run(["cmake", "-S", root, "-B", pathlib.Path(folder) / "build", f"-DCMAKE_CXX_COMPILER={older}"],
                              capture_output=True, text=True, check=False)
        said = " ".join(done.stderr.split())
    if done.returncode == 0 or "Tern needs g++ 12 or clang++ 14, or newer, and " not in said or "is version 11." not in said:
        yield f"cmake/TernCompiler.cmake:1: with g++ 11, CMake ends with {done.returncode} and prints: {said}"


def main():
    root = tree.arguments(__doc__).root.resolve()
    tree.finish(violations(root), f"{len(CASES) + 1} machines that lack something")


main()
