"""Writes the source pages of the site: ``pages.py TARGET`` copies the Markdown pages, and makes the pages of references.

The pages of ``docs/`` keep their places. Links that leave ``docs/`` point at files of the tree; each such file gets a page
of the site: a public header its page in the reference, other Markdown pages and sources a page in ``tree/``.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
import shutil
import sys

import headers
import python_reference

site = pathlib.Path(__file__).resolve().parent
root = site.parent.parent
INDEXED = ("decisions", "formats")  # folders of docs whose list of pages is made here
REFERENCES = {"include/tern": "reference/cpp/index.rst", "python/ternmem": "reference/python/index.rst"}
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".h": "c", ".py": "python", ".cu": "cuda", ".json": "json", ".cmake": "cmake", ".yml": "yaml"}


class Site:
    def __init__(self, target: pathlib.Path) -> None:
        self.target = target
        self.extra: dict[str, str] = {}  # pages of files outside of docs, by their path in the tree
        self.dead: list[str] = []

    # --- Markdown

    def page_of(self, path: str) -> str | None:
        """Return the source file of the page for a file or folder of the tree. Make the page if it is missing."""
        if path == "docs" or path.startswith("docs/"):
            inside = path.removeprefix("docs").lstrip("/")
            if (root / path).is_dir():
                return posixpath.join(inside, "index.md") if inside in INDEXED or self.has_index(path) else self.folder(path)
            return self.page_in_docs(inside)
        header = path.removeprefix("include/tern/")
        if header != path and path.endswith((".hpp", ".h")) and "detail" not in path.split("/"):
            return f"reference/cpp/{header}.rst"
        if path in REFERENCES:
            return REFERENCES[path]
        if path == "python/ternmem":
            return "reference/python/index.rst"
        if (root / path).is_dir():
            readme = f"{path}/README.md"
            return self.copy(readme) if (root / readme).is_file() else self.folder(path)
        if not (root / path).is_file():
            return None
        return self.copy(path)

    @staticmethod
    def page_in_docs(inside: str) -> str:
        # The index of the site is a page of its own.
        return "overview.md" if inside == "README.md" else re.sub(r"/README\.md$", "/index.md", inside)

    def has_index(self, path: str) -> bool:
        return any((root / path / name).is_file() for name in ("index.md", "README.md"))

    def copy(self, path: str) -> str:
        page = f"tree/{path}" if path.endswith(".md") else f"tree/{path}.rst"
        if page not in self.extra:
            self.extra[page] = path
            if path.endswith(".md"):
                self.write(page, self.rewritten(path, page))
            else:
                language = LANGUAGES.get(pathlib.Path(path).suffix, "none")
                title = f"``{path}``"
                self.write(page, f":orphan:\n\n{title}\n{'=' * len(title)}\n\n.. literalinclude:: {pathlib.Path(path).name}.txt\n"
                                 f"   :language: {language}\n")
                shutil.copyfile(root / path, self.target / "tree" / f"{path}.txt")
        return page

    def folder(self, path: str) -> str:
        page = f"tree/{path}/index.rst"
        if page not in self.extra:
            self.extra[page] = path
            title = f"``{path}/``"
            names = sorted(one.name + "/" * one.is_dir() for one in (root / path).iterdir() if not one.name.startswith((".", "__pycache__")))
            self.write(page, f":orphan:\n\n{title}\n{'=' * len(title)}\n\n" + "\n".join(f"- ``{name}``" for name in names) + "\n")
        return page

    def rewritten(self, path: str, page: str) -> str:
        """The text of a Markdown file, with links that are right on its page."""
        def link(found: re.Match[str]) -> str:
            to, _, anchor = found[2].partition("#")
            if re.match(r"\w+:", to) or not to or (path.startswith("docs/site/") and not to.startswith("../")):
                return found[0]
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), to))
            if found[1].startswith("!"):
                self.image(inside)
                return f"{found[1]}{self.relative(self.image(inside), page)}{found[3]}"
            goal = self.page_of(inside)
            if goal is None:
                self.dead.append(f"{path}: {found[2]}")
                return found[0]
            return f"{found[1]}{self.relative(goal, page)}{'#' + anchor if anchor and goal.endswith('.md') else ''}{found[3]}"

        parts = re.split(r"(^```.*?^```$)", (root / path).read_text(), flags=re.M | re.S)
        text = "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)
        if path.startswith("docs/tasks/"):
            text = with_line_numbers(text)
        return f"---\norphan: true\n---\n\n{text}" if page.startswith("tree/") else text

    def image(self, path: str) -> str:
        to = path.removeprefix("docs/") if path.startswith("docs/") else f"tree/{path}"
        (self.target / to).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, self.target / to)
        return to

    @staticmethod
    def relative(to: str, page: str) -> str:
        return posixpath.relpath(to, posixpath.dirname(page) or ".")

    def write(self, page: str, text: str) -> None:
        path = self.target / page
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)

    def markdown(self) -> None:
        for path in sorted((root / "docs").rglob("*.md")):
            inside = path.relative_to(root / "docs").as_posix()
            if inside.startswith("site/"):
                page = inside.removeprefix("site/")
                self.write(page, self.rewritten(f"docs/{inside}", page))
                continue
            page = self.page_in_docs(inside)
            text = self.rewritten(f"docs/{inside}", page)
            if inside.endswith("/README.md"):
                listed = dict.fromkeys(re.findall(r"\]\((\w[\w-]*)\.md\)", text))
                text += "\n```{toctree}\n:hidden:\n\n" + "\n".join(listed) + "\n```\n"
            self.write(page, text)
        for name in INDEXED:
            pages = sorted(path.stem for path in (root / "docs" / name).glob("*.md"))
            self.write(f"{name}/index.md", f"# {name.capitalize()}\n\n```{{toctree}}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```\n")

    # --- The reference of C++ and C

    def reference(self) -> None:
        layers: dict[str, list[pathlib.Path]] = {}
        include = root / "include" / "tern"
        for path in sorted([*include.rglob("*.hpp"), *include.rglob("*.h")]):
            if "detail" not in path.parts:
                layers.setdefault(path.relative_to(include).parts[0] if path.parent != include else "", []).append(path)
        order = [row.split("|")[1].strip(" `") for row in (include / "README.md").read_text().splitlines() if row.startswith("| `")]
        meaning = {row.split("|")[1].strip(" `"): row.split("|")[3].strip() for row in (include / "README.md").read_text().splitlines()
                   if row.startswith("| `")}
        lines = ["C++ reference", "=============", "", "Programs include ``<tern/tern.hpp>``, or single headers. The layers, from the lowest:", ""]
        for layer in [one for one in order if one in layers]:
            title = layer
            lines += [f"{title}", "-" * len(title), "", rst(meaning.get(layer, "")), "", *self.headers(layers[layer])]
        lines += ["The header of all", "-----------------", "", *self.headers(layers.get("", []))]
        self.write("reference/cpp/index.rst", "\n".join(lines))

    def headers(self, paths: list[pathlib.Path]) -> list[str]:
        """Make the pages of the headers, and return a list of them: what each header has, by its first sentence."""
        include = root / "include" / "tern"
        tree = [".. toctree::", "   :hidden:", ""]
        table = [".. list-table::", "   :widths: 32 68", ""]
        for path in paths:
            inside = path.relative_to(include).as_posix()
            self.header(path, inside)
            tree.append(f"   {path.name} <{inside}>")
            table += [f"   * - :doc:`{inside} <{inside}>`", f"     - {first_sentence(path)}"]
        return [*tree, "", *table, ""]

    def header(self, path: pathlib.Path, inside: str) -> None:
        prose, code = opening(path)
        title = inside
        lines = [title, "=" * len(title), "", ".. code-block:: cpp", "", f"   #include <tern/{inside}>", "", *prose, ""]
        if code:
            lines += [f".. doxygengroup:: {headers.group_of(path)}", "   :content-only:", "   :members:", "   :undoc-members:", ""]
        self.write(f"reference/cpp/{inside}.rst", "\n".join(lines))


def with_line_numbers(text: str) -> str:
    """The text of a page with a program. If its output names lines of the program, the program has line numbers."""
    if not re.search(r"^```text\n(?:(?!```).*\n)*?.*(?:\bline \d|\.(?:cpp|py):\d)", text, re.M):
        return text
    return re.sub(r"^```(cpp|python)\n", r"```{code-block} \1\n:linenos:\n\n", text, count=1, flags=re.M)


def rst(text: str) -> str:
    """Markdown of one sentence as reStructuredText."""
    return re.sub(r"`([^`]+)`", r"``\1``", text)


def opening(path: pathlib.Path) -> tuple[list[str], bool]:
    """The comment at the top of a header as reStructuredText, and whether the header declares anything."""
    text = path.read_text()
    lines = []
    if path.suffix == ".h":
        found = re.match(r"\s*/\*(.*?)\*/", text, re.S)
        source = [re.sub(r"^ \* ?", "", line) for line in (found[1].strip().splitlines() if found else [])]
    else:
        source = []
        for line in text.splitlines():
            if not line.startswith("//"):
                break
            source.append(line.removeprefix("//").removeprefix(" "))
    is_code = is_item = False
    for line in source:
        starts_code = line.startswith(("  ", "\t")) and not is_item
        if starts_code and not is_code:
            lines += ["", ".. code-block:: cpp" if path.suffix == ".hpp" else ".. code-block:: c", ""]
        elif is_code and line and not starts_code:
            lines.append("")
        if line:
            is_code = starts_code
        if not line:
            is_item = False
        if re.match(r"(- |\d\. )", line):
            if not is_item:
                lines.append("")
            is_item = True
        elif is_item and line and not line.startswith(" "):
            lines.append("")
            is_item = False
        plain = re.sub(r"`\s*([^`]+?)\s*`", r"``\1``", line.replace("\\", "\\\\"))
        plain = re.sub(r"(?<!`)\*(?!`)", r"\\*", plain) if not re.search(r"``", plain) else plain
        plain = re.sub(r"(?<![`\w])(\w+)_(?=[\s,.;:)]|$)(?!`)", r"\1\\_", plain)
        lines.append("   " + line if starts_code and line else plain)
    is_declaring = any("namespace tern" in line for line in text.splitlines()) if path.suffix == ".hpp" else True
    return lines, is_declaring


def first_sentence(path: pathlib.Path) -> str:
    """The first sentence of the comment at the top of a header, without a colon at its end."""
    prose, _ = opening(path)
    paragraph = " ".join("\n".join(prose).strip().split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z])", paragraph)[0]
    return re.sub(r":$", ".", sentence)


def main(target: pathlib.Path) -> int:
    made = Site(target)
    made.markdown()
    made.reference()
    missing = python_reference.write(root / "python" / "ternmem", target / "reference" / "python")
    for name in made.dead:
        print(f"dead link: {name}")
    for name in missing:
        print(f"no docstring: {name}")
    return 1 if made.dead or missing else 0


if __name__ == "__main__":
    os.chdir(root)
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
