"""Includes point down: each file includes only what the layer table grants its folder."""

import re

import tree

TABLE = "include/tern/README.md"
ROW = re.compile(r"^\| `([\w./]+)`\s*\|([^|]*)\|")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)


def read_rows(root):
    """{folder or file: (line, what it may include)}, in the order of the table."""
    table = root / TABLE
    lines = table.read_text().splitlines() if table.exists() else []
    rows = ((number, ROW.match(line)) for number, line in enumerate(lines, start=1))
    return {row[1]: (number, set(re.findall(r"`(\w+)`", row[2]))) for number, row in rows if row}


def wrong_rows(root, rows):
    if not rows:
        yield f"{TABLE}:1: there is no layer table."
    layers = [name for name in rows if "/" not in name]
    for name, (line, grants) in rows.items():
        if "/" in name:
            if not (root / name).is_file():
                yield f"{TABLE}:{line}: '{name}' has a row but does not exist."
            continue
        if not (root / "include/tern" / name).is_dir() and not (root / "src" / name).is_dir():
            yield f"{TABLE}:{line}: '{name}' has a row but no folder."
        for target in sorted(grants - set(layers[: layers.index(name)])):
            yield f"{TABLE}:{line}: '{name}' is granted '{target}', which is not below it."


def layered(parts):
    """The parts of a path from its layer on: detail/x/y.hpp belongs to the layer x."""
    return parts[1:] if len(parts) > 2 and parts[0] == "detail" else parts


def wrong_includes(path, shown, layer, allowed, public):
    text = tree.without_comments(path.read_text())
    for match in INCLUDE.finditer(text):
        quote, name = match.groups()
        where = f"{shown}:{tree.line_of(text, match.start(2))}"
        parts = name.split("/")
        ours = parts[0] == "tern"
        if ".." in parts:
            yield f"{where}: '{name}' goes through '../'; write it from the root of the tree."
        elif quote == "<" and not ours:
            continue
        elif ours and len(parts) == 2:
            yield f"{where}: '{layer}' includes '{name}', which is for users; include what is needed."
        elif len(parts) > 1 + ours and layered(parts[ours:])[0] not in allowed:
            yield f"{where}: '{layer}' may not include '{name}'."
        elif public and not ours:
            yield f"{where}: a public header includes '{name}', which is not installed."


def violations(root, rows):
    yield from wrong_rows(root, rows)
    for top in ("include/tern", "src"):
        for path in tree.sources(root, top):
            shown = path.relative_to(root).as_posix()
            parts = layered(path.relative_to(root / top).parts)
            if len(parts) == 1 and shown in rows:
                # The header that includes the others, which none of them may include.
                yield from wrong_includes(path, shown, shown, rows[shown][1], top != "src")
            elif len(parts) == 1:
                yield f"{shown}:1: the file stands outside every layer folder."
            elif parts[0] not in rows:
                yield f"{shown}:1: folder '{parts[0]}' has no row in {TABLE}."
            else:
                own = rows.get(shown, (0, set()))[1]
                allowed = {parts[0]} | rows[parts[0]][1] | own
                yield from wrong_includes(path, shown, parts[0], allowed, top != "src")


def main():
    root = tree.arguments(__doc__).root
    rows = read_rows(root)
    tree.finish(violations(root, rows), f"the includes of {len(rows)} rows")


main()
