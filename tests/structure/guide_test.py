"""Every program fragment of the guide compiles, so that what people copy works."""

import re
import shutil
import subprocess
import sys
import tempfile
import pathlib

import tree

# Declares what fragments use of CCCL, RMM, Thrust and CUB.
STANDINS = pathlib.Path(__file__).resolve().parents[1] / "support/cuda_libraries.hpp"

BLOCK = re.compile(r"^```cpp\n(.*?)^```", re.DOTALL | re.M)
INCLUDE = re.compile(r"^#include.*$", re.M)

# What the fragments take for granted: a device, some streams, some memory.
GIVEN = """
[[maybe_unused]] tern::Device device, host_device;
[[maybe_unused]] tern::Stream stream, producer, consumer;
[[maybe_unused]] float *data = nullptr, *host = nullptr, *from = nullptr, *to = nullptr;
[[maybe_unused]] std::size_t count = 0, bytes = 0, page = 0;
[[maybe_unused]] tern::Buffer buffer, pinned;
[[maybe_unused]] tern::NativeKernel kernel;
[[maybe_unused]] cudaStream_t stream_of_library = nullptr;
[[maybe_unused]] tern::LaunchSize size;
[[maybe_unused]] std::span<const tern::KernelArgument> arguments;
"""


def is_for_namespace(block):
    return re.search(r"TEST_F\(|^TERN_(ELEMENT_|BLOCK_)?KERNEL\(|^tern::\w+ \w+\(const .*\) \{$", block, re.M)


def unit_of(root, pages, has_mpi):
    """One translation unit: each block is a function or a namespace, with the lines of its page."""
    includes = [f'#include "{path.relative_to(root / "include").as_posix()}"'
                for path in tree.sources(root, "include/tern")
                if has_mpi or not tree.needs_mpi(root, path)] + ["#include <iostream>", f'#include "{STANDINS}"']
    functions = []
    for page in pages:
        text = page.read_text()
        name = page.relative_to(root).as_posix()
        for block in BLOCK.finditer(text):
            if not has_mpi and "mpi::" in block[1]:
                continue
            line = tree.line_of(text, block.start(1))
            includes += INCLUDE.findall(block[1])
            scope = f"{page.stem.replace('-', '_')}_{line}"
            # Tests and portable kernels are not inside of functions. Other fragments have a scope of their own there,
            # so that they may use the given names for their own things.
            begin, end = ((f"namespace {scope} {{", "}") if is_for_namespace(block[1]) else
                          (f"void {scope}() {{ {GIVEN} {{", "} }"))
            functions += [begin, f'#line {line} "{name}"', INCLUDE.sub("", block[1]), end]
    return "\n".join(includes + functions) + "\n", len(functions) // 4


def main():
    root = tree.arguments(__doc__).root.resolve()
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        sys.exit("docs/guide:1: there is no compiler to check it with.")
    violations = []
    with tempfile.TemporaryDirectory() as folder:
        # All pages at once: reading the headers takes longer than reading the fragments.
        mpi = tree.mpi_folders()
        text, fragments = unit_of(root, sorted((root / "docs/guide").glob("*.md")), mpi is not None)
        unit = pathlib.Path(folder) / "guide.cpp"
        unit.write_text(text)
        result = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-Wno-unused-result", "-I",
             str(root / "include"), *(f"-isystem{folder}" for folder in mpi or []), str(unit)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            errors = [line for line in result.stderr.splitlines() if "error" in line]
            violations += errors or ["docs/guide:1: does not compile."]
    if fragments == 0:
        violations.append("docs/guide:1: has no program fragments.")
    tree.finish(violations, f"{fragments} fragments of the guide")


main()
