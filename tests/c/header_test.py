"""tern/c/tern.h is C: it compiles with a C compiler, and so do calls of its functions."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/tern/c/tern.h"

# Takes the address of every function, so that each declaration is C.
PROGRAM = """#include <tern/c/tern.h>
#include <tern/c/tern.h>
typedef void (*any_function)(void);
extern const any_function all[];
const any_function all[] = {{{entries}}};
static size_t sizes(void) {{
  tern_pool_options options = {{sizeof(tern_pool_options), TERN_DEVICE_MEMORY, 0, 0}};
  return options.struct_bytes + sizeof(tern_block) + sizeof(tern_statistics);
}}
int main(void) {{ return sizes() == 0 || TERN_ABI_VERSION < 1; }}
"""


def main():
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("no C compiler was found.")
    names = re.findall(r"TERN_C_API\s[^;]*?\b(tern_\w+)\(", HEADER.read_text())
    entries = ", ".join(f"(any_function)&{name}" for name in names)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "program.c"
        source.write_text(PROGRAM.format(entries=entries))
        for standard in ("c99", "c11"):
            subprocess.run([compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic",
                            f"-I{ROOT / 'include'}", "-fsyntax-only", source], check=True)
    # The Python module names each function, so that the linker keeps it.
    kept = (ROOT / "python/src/c_api.cpp").read_text()
    missing = [name for name in names if f"entry(&{name})" not in kept]
    if missing:
        sys.exit(f"python/src/c_api.cpp does not export {', '.join(missing)}.")
    print(f"{len(names)} functions are C, and the Python module exports them")


main()
