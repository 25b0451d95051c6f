#!/usr/bin/env python3
"""The site of the documentation builds: no dead link, and no public name without a comment.

Also sees each check fail: a header without a comment, a page with a dead link, a page that loads something.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(*command: str, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")


def planted(root: pathlib.Path, scratch: pathlib.Path) -> list[str]:
    """Problems that the checks did not find."""
    missed = []
    site = root / "docs" / "site"
    headers = scratch / "include" / "tern"
    (headers / "core").mkdir(parents=True)
    (headers / "core" / "planted.hpp").write_text(
        "// A planted header.\n\n#pragma once\n\nnamespace tern {\n\n/// Documented.\nvoid told();\n\nvoid untold();\n\n}  // namespace tern\n")
    subprocess.run([sys.executable, site / "headers.py", headers, scratch / "build/docs/include/tern"], check=True)
    (scratch / "build/docs/doxygen").mkdir(parents=True)
    subprocess.run(["doxygen", site / "Doxyfile"], cwd=scratch, check=True, capture_output=True)
    found = run(sys.executable, str(site / "undocumented.py"), str(scratch / "build/docs/doxygen/xml"), cwd=scratch)
    if "untold" not in found.stdout or "planted.hpp: told" in found.stdout or found.returncode == 0:
        missed.append(f"a name without a comment: {found.stdout}{found.stderr}")

    html = scratch / "html"
    html.mkdir()
    (html / "a.html").write_text('<a href="b.html">b</a><a href="#nowhere">c</a><script src="https://example.com/x.js"></script>')
    found = run(sys.executable, str(site / "closed.py"), str(html), cwd=scratch)
    for problem in ("dead link b.html", "no such place #nowhere", "loads https://example.com/x.js"):
        if problem not in found.stdout:
            missed.append(f"{problem}: {found.stdout}{found.stderr}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    root = parser.parse_args().root.resolve()
    python = root / "build" / "peers" / "bin" / "python3"
    if not shutil.which("doxygen") or not python.exists() or run(str(python), "-c", "import breathe, furo, myst_parser, sphinx", cwd=root).returncode:
        print("skipped: the site needs doxygen, sphinx, breathe, myst-parser and furo (scripts/setup docs)")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        missed = planted(root, pathlib.Path(scratch))
    for one in missed:
        print(f"not found: {one}")
    built = run("scripts/docs", cwd=root)
    print(built.stdout + built.stderr)
    return 1 if missed or built.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
