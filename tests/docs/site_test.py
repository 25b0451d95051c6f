#!/usr/bin/env python3
"""The site of the documentation builds: no dead link, and no public name without a comment.

Also sees each check fail: a header without a comment, a page with a dead link, a page that loads something. What a
newcomer asks is answered at most two links away from the first page.
"""

import argparse
import html.parser
import pathlib
import posixpath
import shutil
import subprocess
import sys
import tempfile

# A question, and a page with words of its answer.
QUESTIONS = [
    ("What replaces cudaMallocAsync?", "migrate/cuda.html", "cudaMallocAsync"),
    ("Can I launch my kernels with <<<>>>?", "guide/launches.html", "LaunchRecorder"),
    ("Do I need the CUDA toolkit?", "install.html", "No toolkit is needed to build"),
    ("Which systems and drivers does Tern run on?", "tree/README.html", "CUDA 11.3 or newer"),
    ("How fast is it, and how do I measure that?", "tree/README.html", "tern bench pool.pair"),
    ("How do PyTorch and my code share a pool?", "tasks/pytorch.html", "ternmem.torch"),
    ("My model is larger than the GPU. What now?", "guide/python-plugins.html", "offload_parameters"),
    ("Why is a request refused while memory is free?", "guide/pool.html", "Fragmentation"),
    ("What are pool_memory_resource and set_current_device_resource called?", "migrate/rmm.html", "pool_memory_resource"),
    ("Can cuDF allocate from Tern?", "guide/cuda-libraries.html", "cuDF"),
    ("How do I pass a CuPy array without a copy?", "guide/python-exchange.html", "from_dlpack"),
    ("Can my tests run without a GPU?", "tasks/without-a-gpu.html", "sim"),
    ("May several threads use one buffer? And a forked child?", "guide/devices.html", "After a fork"),
    ("How do I limit the memory of one part of my program?", "tasks/budget.html", "BudgetResource"),
    ("What does TERN_TRACE do?", "guide/devices.html", "records what the program does with memory"),
    ("How do I install without root?", "install.html", "TERN_CMAKE_ARGS"),
    ("Which CUDA driver do I need?", "guide/cuda.html", "release 465"),
    ("Who holds the memory?", "tasks/report.html", "share bytes blocks tag"),
    ("How do I call cuBLAS on a buffer?", "guide/launches.html", "cublasSetStream"),
    ("Why does nvidia-smi show memory that I freed?", "guide/pool.html", "nvidia-smi"),
    ("What does OutOfBudget mean?", "guide/errors.html", "OutOfBudget"),
]
CLICKS = 2


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


class Article(html.parser.HTMLParser):
    """The text and the links of a page, without its navigation."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.is_inside = False
        self.links: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.is_inside = self.is_inside or tag == "article"
        if self.is_inside and tag == "a":
            self.links.add((dict(attributes).get("href") or "").partition("#")[0])

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = self.is_inside and tag != "article"

    def handle_data(self, text: str) -> None:
        self.text += text if self.is_inside else ""


def unanswered(html_folder: pathlib.Path) -> list[str]:
    """Questions whose answer is too far from the first page, or gone."""
    articles = {"index.html": Article((html_folder / "index.html").read_text())}
    reached = {"index.html"}
    for _ in range(CLICKS):
        for page in sorted(reached):
            for link in articles[page].links:
                to = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
                if link.endswith(".html") and to not in articles and (html_folder / to).is_file():
                    articles[to] = Article((html_folder / to).read_text())
        reached = set(articles)
    return [f"{question} {page} is not {CLICKS} links away from the first page, or has no '{words}'."
            for question, page, words in QUESTIONS if page not in articles or words not in " ".join(articles[page].text.split())]


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
    if built.returncode == 0:
        for one in unanswered(root / "build/docs/html"):
            print(one)
            missed.append(one)
    return 1 if missed or built.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
