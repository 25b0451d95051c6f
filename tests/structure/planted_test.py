"""Plants each violation once, in a copy of the tree, and sees the test for it fail and name it."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import tree

TABLE = "include/tern/README.md"


def write(path, text):
    def plant(root):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return plant


def append(path, text):
    return lambda root: (root / path).write_text((root / path).read_text() + text)


def replace(path, pattern, new):
    def plant(root):
        text, count = re.subn(pattern, new, (root / path).read_text(), count=1, flags=re.M)
        assert count == 1, f"{path} has nothing like '{pattern}' to replace"
        (root / path).write_text(text)
    return plant


# (test, what is planted, the file the message must name, how it is planted)
PLANTS = [
    ("layers", "an upward include", "src/core/planted.cpp:3",
     write("src/core/planted.cpp", '// "a comment"\n\n#include "tern/device/device.hpp"\n')),
    ("layers", "an upward include in angle brackets", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", "#include <tern/backends/catalog.hpp>\n")),
    ("layers", "an upward include of a private header", "src/device/planted.cpp:1",
     write("src/device/planted.cpp", '#include "backends/host/planted.hpp"\n')),
    ("layers", "a private include in a public header", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", '#include "core/planted.hpp"\n')),
    ("layers", "an upward include in detail", "include/tern/detail/core/planted.hpp:1",
     write("include/tern/detail/core/planted.hpp", '#include "tern/device/device.hpp"\n')),
    ("layers", "an upward include of detail", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", '#include "tern/detail/buffer/storage.hpp"\n')),
    ("layers", "a layer of detail without a row", "include/tern/detail/planted/planted.hpp:1",
     write("include/tern/detail/planted/planted.hpp", "")),
    ("layers", "an include through ../", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", '#include "../core/bytes.hpp"\n')),
    ("layers", "a folder without a row", "src/utils/planted.cpp:1",
     write("src/utils/planted.cpp", "")),
    ("layers", "a file outside every folder", "src/planted.cpp:1", write("src/planted.cpp", "")),
    ("layers", "a layer that includes the header of all", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", '#include "tern/tern.hpp"\n')),
    ("layers", "an upward grant", TABLE,
     replace(TABLE, r"^\| `core` *\|[^|]*\|", "| `core` | `device` |")),
    ("layers", "a row without a folder", TABLE,
     replace(TABLE, r"^(\| `core`.*)$", r"\1\n| `planned` | `core` | Later. |")),
    ("headers_compile", "a header that is not self-contained", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", "#pragma once\nstd::string planted();\n")),
    ("headers_compile", "a header that cannot be included twice", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", "struct Planted {};\n")),
    ("mirror", "a source without a test", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", "")),
    ("mirror", "a stale line", "tests/structure/covered_elsewhere.txt",
     append("tests/structure/covered_elsewhere.txt", "src/core/gone.cpp: tests/core/gone_test.cpp\n")),
    ("quiet", "a printf", "src/core/planted.cpp:2",
     write("src/core/planted.cpp", "// printf(1)\nvoid f() { std::printf(\"exit(1)\"); }\n")),
    ("quiet", "a stream", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", "inline void f() { std::cerr << 1'000; }\n")),
    ("quiet", "a getenv", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", "auto x = getenv(\"HOME\");\n")),
    ("quiet", "an abort", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", "void f() { if (true) std::abort(); }\n")),
    ("quiet", "an exit", "src/core/planted.cpp:2",
     write("src/core/planted.cpp", "void f() {\n  exit(1);\n}\n")),
    ("quiet", "a clock", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", "auto x = std::chrono::steady_clock::now();\n")),
    ("quiet", "the time", "src/core/planted.cpp:1",
     write("src/core/planted.cpp", "long f() { return time(nullptr); }\n")),
    ("quiet", "a stale allowance", "tests/structure/quiet_allowed.txt",
     append("tests/structure/quiet_allowed.txt", "src/core/gone.cpp abort it was needed once\n")),
    ("includes", "a standard name without its header", "src/core/planted.cpp:2",
     write("src/core/planted.cpp", "// std::map\nstd::vector<int> numbers;\n")),
    ("includes", "a name of {fmt} without its header", "tools/planted.cpp:2",
     write("tools/planted.cpp", '#include <string>\nstd::string text = fmt::format("1");\n')),
    ("includes", "a type of Tern without its header", "src/core/planted.cpp:3",
     write("src/core/planted.cpp", '#include "tern/core/bytes.hpp"\n\ntern::StreamPool* pool = nullptr;\n')),
    ("includes", "a function of Tern without its header", "src/core/planted.cpp:2",
     write("src/core/planted.cpp", "\nauto text = tern::format_bytes(1);\n")),
    ("threads", "a raw thread in a test", "tests/core/planted_test.cpp:2",
     write("tests/core/planted_test.cpp", "\nvoid f() { std::thread([] {}).join(); }\n")),
    ("threads", "raw threads in a container", "tests/support/planted.hpp:1",
     write("tests/support/planted.hpp", "inline std::vector<std::jthread> all;\n")),
    ("two_forms", "a try form alone", "include/tern/core/planted.hpp:5",
     write("include/tern/core/planted.hpp",
           "namespace tern {\nclass Planted {\n public:\n  int all() const noexcept;\n"
           "  Result<int> try_one() noexcept;\n};\n}\n")),
    ("two_forms", "a throwing form alone", "include/tern/core/planted.hpp:2",
     write("include/tern/core/planted.hpp",
           "namespace tern {\nvoid planted(CallSite site = CallSite::here());\n}\n")),
    ("two_forms", "a try form without a Result", "include/tern/core/planted.hpp:1",
     write("include/tern/core/planted.hpp", "bool try_planted() noexcept;\nvoid planted();\n")),
    ("two_forms", "a stale line", "tests/structure/single_form.txt",
     append("tests/structure/single_form.txt", "Buffer::try_slice it was alone once\n")),
    ("two_forms", "a guide that names what is gone", "docs/guide/errors.md:",
     replace("docs/guide/errors.md", r"`Buffer::try_use\(\)`", "`Buffer::try_gone()`")),
    ("vocabulary", "a retired word in code", "src/core/planted.cpp:2",
     write("src/core/planted.cpp", "\nstruct BriefLock {};\n")),
    ("vocabulary", "a retired word in prose", "docs/guide/planted.md:1",
     write("docs/guide/planted.md", "Call `keep_on()`.\n")),
    ("vocabulary", "the mark of an unfinished merge", "docs/guide/planted.md:2",
     write("docs/guide/planted.md", "Ours\n=======\nTheirs\n")),
    ("interface_size", "public headers without end", "include/tern:1",
     lambda root: [write(f"include/tern/core/planted{i}.hpp", "#pragma once\n")(root)
                   for i in range(100)]),
    ("interface_size", "a public type too many", "include/tern:1",
     append("include/tern/core/version.hpp",
            "namespace tern {\n" + "".join(f"struct Planted{i} {{}};\n" for i in range(20)) + "}\n")),
    ("interface_size", "public nested types too many", "include/tern:1",
     append("include/tern/core/version.hpp",
            "class Planted {\n public:\n"
            + "".join(f"  enum class A{i} {{ a }};\n" for i in range(20)) + "};\n")),
    ("interface_size", "detail headers without end", "include/tern/detail:1",
     lambda root: [write(f"include/tern/detail/core/planted{i}.hpp", "#pragma once\n")(root)
                   for i in range(100)]),
    ("decisions", "a function that has moved", "docs/architecture.md:",
     replace("src/buffer/copy_route.cpp", r"^(std.*) plan_copy\(", r"\1 planned_copy(")),
    ("decisions", "a file that has moved", "docs/architecture.md:",
     replace("docs/architecture.md", r"\(../src/buffer/copy_route.cpp\)", "(../src/buffer/route.cpp)")),
    ("decisions", "a section that is gone", "docs/architecture.md:1",
     replace("docs/architecture.md", "^## Where is it decided.$", "## Elsewhere")),
    ("not_run", "presets left out in silence", "scripts/test:1",
     replace("scripts/test", r'left_out\+=\("presets:\$absent"\)', "true")),
    ("not_run", "skipped tests left out in silence", "scripts/test:1",
     replace("scripts/test", r'^  note_skipped "\$preset"$', "")),
    ("not_run", "long tests left out in silence", "scripts/test:1",
     replace("scripts/test", r'^  runs_long_tests "\$preset" \|\| left_out.*$', "  true")),
    ("version", "a stale version in the citation", "CITATION.cff:",
     replace("CITATION.cff", r"^version: .*$", "version: 0.0.1")),
    ("version", "a changelog without the version", "CHANGELOG.md:",
     replace("CHANGELOG.md", r"^## .*$", "## 0.0.1, unreleased")),
    ("version", "a stale version in a program", "tests/install/installed/CMakeLists.txt:",
     replace("tests/install/installed/CMakeLists.txt", r"find_package\(tern \S+", "find_package(tern 0.0")),
    ("readme", "a README that drifted", "README.md",
     replace("README.md", "^```cpp$", "```cpp\n// drift")),
    ("pictures", "a layer that the picture does not show", "docs/images/layers.svg:1",
     replace("include/tern/README.md", "Schemas, columns, and tables", "Rows and tables")),
    ("pictures", "a layer that may include another one", "include/tern/README.md:1",
     replace("include/tern/README.md", r"^\| `trace`     \| `core`  ", "| `trace`     |         ")),
    ("pictures", "an access that changes the state in another way", "docs/guide/unified.md:1",
     replace("docs/guide/unified.md", r"^(\| `HOST_ONLY` \| same \| same \|) `SYNCHRONIZED`", r"\1 same")),
    ("pictures", "a program that the picture does not show", "README.md:1",
     replace("README.md", r"row\.fill\(2\.5f, consumer\)", "row.fill(2.5f, producer)")),
]

# What looks like a violation and is none.
HARMLESS = [
    ("layers", "an include in a comment",
     write("src/core/planted.cpp", '/*\n#include "tern/device/device.hpp"\n*/\n')),
    ("interface_size", "types that are not public",
     append("include/tern/core/version.hpp",
            "namespace tern {\nclass Forward;\nnamespace detail {\nstruct A {};\n}\n"
            "template <class T>\nvoid f(struct B& b) { struct C { int c; }; }\n"
            "template <>\nstruct std::hash<int> {};\n}\n" + "enum class Forward;\n" * 300)),
    ("threads", "what starts no thread",
     write("tests/core/planted_test.cpp",
           "#include <thread>\n// std::thread\nstd::thread::id id = std::this_thread::get_id();\n"
           "auto count = std::thread::hardware_concurrency();\ntest::Thread one;\n")),
    ("two_forms", "functions that are not public, or cannot fail",
     write("include/tern/core/planted.hpp",
           "namespace tern {\nclass Planted {\n public:\n  Planted(CallSite site = CallSite::here());\n"
           "  static Result<Planted> try_make() noexcept;\n  void f(CallSite site) noexcept;\n"
           "  CallSite site = CallSite::here();\n"
           "  Result<int> try_allocate() noexcept override;\n private:\n"
           "  Result<int> try_hidden() noexcept;\n};\nnamespace detail {\nvoid g(CallSite site);\n}\n}\n")),
    ("quiet", "others with the same names",
     write("src/core/planted.cpp",
           "long time() const;\nClock& clock();\nResult<int> rand();\n"
           "void Work::exit() { clock.sleep(1); work->abort(); }\n"
           'auto text = "printf"; auto raw = R"(a "getenv" b)"; char c = \'"\';\n'
           "int n = std::snprintf(buffer, 8, format);\n")),
]


# These tests judge each file by itself, so two files of each folder are enough to see them fail.
EACH_FILE = {"layers", "threads"}
# This test reads no sources.
PAGES = {"pictures"}


def all_but_two(folder, names):
    kept = [name for name in sorted(names) if name.endswith((".cpp", ".hpp", ".py"))]
    return {*kept[2:], "__pycache__"}


def copy_tree(root, target, test):
    """What a test reads, without generated files. Headers are tested on their own tree below."""
    ignore = all_but_two if test in EACH_FILE else shutil.ignore_patterns("__pycache__")
    folders = {"version": (), "includes": ("include",), **dict.fromkeys(PAGES, ("include",))}
    for folder in folders.get(test, ("include", "src", "tests")):
        shutil.copytree(root / folder, target / folder, ignore=ignore)
    for file in ("README.md", "examples/01_first_steps.cpp", "docs/architecture.md", "bench/case.hpp",
                 "docs/guide/errors.md", "docs/guide/unified.md", "docs/tasks/oversubscribe.md", "docs/images/tern.svg",
                 "docs/images/layers.svg", "docs/images/states.svg", "scripts/test", "scripts/progress.sh", "CITATION.cff",
                 "CHANGELOG.md", "docs/guide/packages.md", "cmake/tern.map", "src/core/version.cpp",
                 "include/tern/core/version.hpp", "include/tern/c/tern.h", "tests/install/installed/CMakeLists.txt",
                 "cmake/TernInstall.cmake", "docs/formats/trace.md"):
        if (root / file).exists():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, target / file)


def copy_headers(root, target):
    # Two headers are enough to see the test fail; headers_compile_test itself compiles them all.
    for name in ("core/version.hpp", "detail/core/visibility.hpp"):
        copy = target / "include/tern" / name
        copy.parent.mkdir(parents=True)
        shutil.copy(root / "include/tern" / name, copy)


def run(test, root):
    here = pathlib.Path(__file__).resolve().parent
    command = [sys.executable, "-B", str(here / f"{test}_test.py"), "--root", str(root)]
    if test == "headers_compile":
        compiler = "g++" if shutil.which("g++") else "clang++"
        command += ["--compiler", compiler]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def outcome(root, test, plant):
    """The status and output of a test on a fresh copy with the plant in it."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder)
        if test == "headers_compile":
            copy_headers(root, target)
        else:
            copy_tree(root, target, test)
        if plant:
            plant(target)
        return run(test, target)


def violations(root):
    failing = set()
    for test in dict.fromkeys(test for test, *_ in PLANTS):
        status, output = outcome(root, test, None)
        if status != 0:
            failing.add(test)
            yield f"tests/structure/{test}_test.py:1: fails before anything is planted: {output.strip()}"
    for test, what, named, plant in PLANTS:
        # A test that fails anyway would prove nothing.
        if test in failing:
            continue
        status, output = outcome(root, test, plant)
        if status == 0 or not any(line.startswith(named) for line in output.splitlines()):
            yield (f"tests/structure/{test}_test.py:1: does not report {what} as '{named}: ...'; "
                   f"it ended with {status} and said: {output.strip()}")
    for test, what, plant in HARMLESS:
        status, output = outcome(root, test, plant)
        if status != 0 and test not in failing:
            yield f"tests/structure/{test}_test.py:1: refuses {what}: {output.strip()}"


def main():
    root = tree.arguments(__doc__).root.resolve()
    tree.finish(violations(root), f"{len(PLANTS)} planted violations")


main()
