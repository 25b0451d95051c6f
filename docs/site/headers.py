"""Prepares the headers for Doxygen: ``headers.py include/tern TARGET`` writes them with changed comments.

Headers of Tern have ``///`` comments above declarations and ``//`` comments behind members. Doxygen also needs to
know which comment is meant for several declarations, and which header a declaration comes from:

- A ``//`` comment behind a member is a comment of the member.
- A comment above the first of several adjacent declarations applies to all of them that it names, to fields, and to
  the forms of one function such as ``x()`` and ``try_x()``.
- Members without a comment get the text of ``names.txt`` if their name is there.
- Lists in macros (``TERN_FOR_EACH_...``) are expanded.
- Numbers lose their separators, which Doxygen takes for the beginning of a character.
- All declarations of a header are one group, so that a page can show them.
"""

from __future__ import annotations

import pathlib
import re
import sys

site = pathlib.Path(__file__).resolve().parent
COMMON = dict(line.split(": ", 1) for line in (site / "names.txt").read_text().splitlines() if line and line[0] != "#")
FIELD = re.compile(r"^[\w:<>,*&\s\[\]]+?\b(\w+)(\s*=\s*[^;]*|\s*\{[^;]*\})?;")
FUNCTION = re.compile(r"\b(operator\S+|~?\w+)\(")
COPY = re.compile(r"\b(\w+)\((?:const \1&|\1&&)\s*\w*\)")  # the constructor that copies or moves
WORDS = {"if", "for", "while", "switch", "return", "static_assert", "requires", "decltype", "noexcept", "alignas", "sizeof", "explicit"}


def group_of(path: pathlib.Path) -> str:
    """The name of the group of a header: ``tern_memory_pool_resource_hpp``."""
    parts = path.parts
    start = len(parts) - 1 - parts[::-1].index("tern")
    return re.sub(r"\W", "_", "_".join(parts[start:]))


def without_bodies(lines: list[str]) -> list[str]:
    """The lines, without the bodies of macros that programs use: those with a comment."""
    result: list[str] = []
    is_body = False
    for line in lines:
        if is_body:
            is_body = line.endswith("\\")
            continue
        found = re.match(r"#define (TERN_\w+)\([^)]*\)", line)
        if found and result and result[-1].startswith("///") and not found[1].startswith("TERN_FOR_EACH"):
            is_body = line.endswith("\\")
            line = found[0]
        result.append(line)
    return result


def expanded(lines: list[str]) -> list[str]:
    """The lines, with lists in macros expanded."""
    lists: dict[str, list[list[str]]] = {}
    result: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if found := re.match(r"#define (TERN_FOR_EACH_\w+)\((\w+)\)", line):
            text = [line]
            while text[-1].endswith("\\"):
                at += 1
                text.append(lines[at])
            body = " ".join(one.rstrip("\\").strip() for one in text)[found.end():]
            lists[found[1]] = [[part.strip() for part in one.split(", ")]
                               for one in re.findall(re.escape(found[2]) + r"\((.*?)\)(?=\s|$)", body)]
        elif (found := re.match(r"#define (TERN_\w+)\(([\w, ]+)\)\s+(\S.*)", line)) and not found[1].startswith("TERN_FOR_EACH"):
            text = [found[3]]
            while text[-1].endswith("\\"):
                at += 1
                text.append(lines[at])
            body = " ".join(one.rstrip("\\").strip() for one in text)
            macro, parameters = found[1], [one.strip() for one in found[2].split(",")]
            while not (use := re.match(r"\s*(TERN_FOR_EACH_\w+)\(" + macro + r"\)", lines[at])):
                if lines[at].startswith("#undef"):
                    break
                at += 1
            if use and use[1] in lists and "case " not in body:  # bodies of functions are not shown
                for arguments in lists[use[1]]:
                    values = dict(zip(parameters, arguments))
                    one = re.sub(r"\b\w+\b", lambda word: values.get(word[0], word[0]), body)
                    texts = [value.strip('"') for value in arguments[1:]]
                    if found := re.match(r"class (?:TERN_EXPORT )?\w+", one.strip()):
                        result.append(f"/// The exception of the error code ``{arguments[0]}``.")
                    if re.fullmatch(r"\w+,", one.strip()) and texts:
                        one = f"  {one.strip()} ///< {'; '.join(texts)}"
                    result.append(one)
        elif not re.match(r"#undef TERN_", line):
            result.append(line)
        at += 1
    return result


def is_declaration(line: str) -> bool:
    text = line.strip()
    return bool(text) and not re.match(r"(//|#|\}|\{|public:|private:|protected:|namespace\b|using namespace|/\*|\*|:)", text)


def name_of(text: str) -> tuple[str, bool]:
    """The declared name, and whether it is a field."""
    text = re.sub(r"\[\[.*?\]\]", "", text.strip())
    text = re.sub(r"^template <.*?>\s*(?=\w)", "", text)
    if re.match(r"(class|struct|enum|union|using|friend|typedef)\b", text):
        return "", False
    for found in FUNCTION.finditer(text.split("=")[0] if "operator" not in text else text):
        if found[1] not in WORDS:
            return found[1], False
    if found := FIELD.match(text):
        return found[1], True
    return "", False


def commented(lines: list[str]) -> list[str]:
    """The lines, with a comment for every declaration that a comment or ``names.txt`` is meant for."""
    result: list[str] = []
    comment: list[str] = []  # the comment directly above
    group: list[str] = []    # the last comment since the last blank line
    last_name, last_is_field = "", False
    is_first = True          # of a declaration that may span lines
    is_template = False      # the line above is the head of a template
    for at, line in enumerate(lines):
        text = line.strip()
        if not text:
            comment, group, last_name, is_first = [], [], "", True
            result.append(line)
            continue
        if text.startswith("///"):
            comment.append(line)
            result.append(line)
            is_first = True
            continue
        if text.startswith("//"):
            if "///<" in (result[-1] if result else "") and line.index("//") > 4:
                line = line.replace("//", "///<", 1)
            result.append(line)
            continue
        behind = re.search(r"(?<=[;,{\w)\"'0-9])\s+// (?!namespace|NOLINT)(.*)$", line)
        if is_first and not is_template and is_declaration(line):
            head = re.match(r"template <.*>$|\[\[nodiscard\]\]$", text)
            name, is_field = name_of(lines[at + 1] if head and at + 1 < len(lines) else line)
            stem = name.removeprefix("try_")
            if comment:
                group = comment
            elif name and not behind:
                indent = line[: len(line) - len(line.lstrip())]
                if COPY.search(line):
                    pass  # a comment of another constructor is not meant for it
                elif group and (is_field and last_is_field or stem == last_name.removeprefix("try_") or
                              any(re.search(rf"\b(try_)?{re.escape(stem)}\b", one) for one in group)):
                    result += group
                elif stem in COMMON and not is_field:
                    result.append(f"{indent}/// {COMMON[stem]}")
            if behind and not comment:
                group = []
            last_name, last_is_field = name or last_name, is_field
            comment = []
            is_template = head is not None
        elif is_template:
            is_template = False
        if behind and re.search(r"[;,{]\s*$|\w\s*$|[)\]}\"']\s*$", line[: behind.start()]):
            line = line[: behind.start()] + "  ///< " + behind[1]
        result.append(line)
        code = re.sub(r"\s*//.*$", "", line).rstrip()
        is_first = code.endswith((";", "{", "}", ",", ":")) or is_template if code else True
        if code.endswith(",") and "(" in code and code.count("(") > code.count(")"):
            is_first = False
        if re.match(r"(public|private|protected):", text) or text.startswith(("class ", "struct ", "enum ")):
            comment, group, last_name = [], [], ""
    return result


def from_c(text: str) -> list[str]:
    """The lines of a C header, with comments of the form that Doxygen reads."""
    lines = []
    for line in text.splitlines():
        if re.match(r"\s*/\*", line) and not re.match(r"/\* ---", line):
            line = line.replace("/*", "/**", 1)
        elif found := re.search(r"^(.*[;,}\w])\s*/\* (.*)$", line):
            line = f"{found[1]} /**< {found[2]}"
        lines.append(line)
    return lines


def grouped(lines: list[str], group: str, path: pathlib.Path) -> list[str]:
    """The lines, with the declarations of each namespace in the group of the header."""
    begin, end = f"/** @addtogroup {group} {path.name}", "/** @} */"
    result: list[str] = []
    if path.suffix == ".h":
        first = next(at for at, line in enumerate(lines) if 'extern "C"' in line or line.startswith("typedef"))
        last = max(at for at, line in enumerate(lines) if line.rstrip().endswith(";"))
        return [*lines[:first + 2], begin, " * @{ */", *lines[first + 2:last + 1], end, *lines[last + 1:]]
    for line in lines:
        is_end = re.match(r"\}  // namespace tern", line)
        if is_end:
            result.append(end)
        result.append(line)
        if re.match(r"(inline )?namespace tern[\w:]* \{$", line):
            result += [begin, " * @{ */"]
    return result


def main(source: pathlib.Path, target: pathlib.Path) -> None:
    for path in sorted([*source.rglob("*.hpp"), *source.rglob("*.h")]):
        inside = path.relative_to(source)
        if "detail" in inside.parts:
            continue
        text = path.read_text()
        text = re.sub(r"(?<=\d)'(?=\d{3})", "", text)
        lines = from_c(text) if path.suffix == ".h" else commented(expanded(without_bodies(text.splitlines())))
        to = target / inside
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text("\n".join(grouped(lines, group_of(path), path)) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
