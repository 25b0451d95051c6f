"""The table "Where is it decided?" names files that exist and functions that are in them."""

import re

import tree

PAGE = "docs/architecture.md"
HEADING = "## Where is it decided?"


def rows(text):
    """(line number, row) of the section's table, without its head."""
    lines = text.splitlines()
    begin = lines.index(HEADING) + 1 if HEADING in lines else len(lines)
    for number, line in enumerate(lines[begin:], start=begin + 1):
        if line.startswith("## "):
            return
        if line.startswith("| ") and not line.startswith("| Question |"):
            yield number, line


def main():
    root = tree.arguments(__doc__).root
    violations = []
    count = 0
    for number, row in rows((root / PAGE).read_text()):
        count += 1
        answer = row.split(" | ", 1)[1]
        files = [root / "docs" / link for link in re.findall(r"\]\(([^)#]+)\)", answer)]
        missing = [path.name for path in files if not path.is_file()]
        if missing or not files:
            violations.append(f"{PAGE}:{number}: names {', '.join(missing) or 'no file'}, which does not exist.")
            continue
        # A comment that names a function does not define it.
        text = "\n".join(re.sub(r"//.*", "", path.read_text()) for path in files)
        # Only plain names: `a::b` is looked up as b, and paths and examples are skipped.
        for name in re.findall(r"`((?:\w+::)*\w+)`", answer):
            if not re.search(rf"\b{re.escape(name.split('::')[-1])}\b", text):
                violations.append(f"{PAGE}:{number}: names '{name}', which none of the linked files has.")
    if count == 0:
        violations.append(f"{PAGE}:1: has no table below '{HEADING}'.")
    tree.finish(violations, f"{count} rows of '{HEADING[3:]}'")


if __name__ == "__main__":
    main()
