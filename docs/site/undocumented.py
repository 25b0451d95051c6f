"""Fails if a public name of C++ or C has no comment: ``undocumented.py XML``, the folder that Doxygen wrote.

A name is documented if it has a comment, if the plain comments of its header name it, if an overload or the ``try_`` form has a comment, or if
it is a field of a documented struct. Operators, constructors, destructors, aliases inside of classes and overrides need none.
"""

from __future__ import annotations

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

root = pathlib.Path(__file__).resolve().parent.parent.parent


def has_text(node: ET.Element) -> bool:
    return any("".join(one.itertext()).strip() for tag in ("briefdescription", "detaileddescription") for one in node.findall(tag))


def comments(path: pathlib.Path) -> str:
    """The plain comments of a header. Of the comments of declarations, the names with brackets or in quotes."""
    text = path.read_text()
    plain = [line for line in text.splitlines() if re.match(r"\s*(//(?!/)|/?\*)", line)]
    named = [name for line in text.splitlines() if re.match(r"\s*///", line) for name in re.findall(r"\w+(?=\()|(?<=`)\w+(?=`)", line)]
    return "\n".join([*plain, *named])


class Check:
    def __init__(self) -> None:
        self.comments: dict[str, str] = {}
        self.missing: list[str] = []
        self.checked = 0

    def header_names(self, node: ET.Element, name: str) -> bool:
        location = node.find("location")
        if location is None:
            return False
        inside = location.get("file", "").split("include/")[-1]
        if inside not in self.comments:
            path = root / "include" / inside
            self.comments[inside] = comments(path) if path.is_file() else ""
        return re.search(rf"\b{re.escape(name)}\b", self.comments[inside]) is not None

    def members(self, compound: ET.Element, of: str, is_struct_documented: bool) -> None:
        all_members = [one for one in compound.iter("memberdef") if one.get("prot") == "public"]
        documented: collections.Counter[str] = collections.Counter()
        for one in all_members:
            documented[stem(one)] += has_text(one)
        for one in all_members:
            name = one.findtext("name") or ""
            kind = one.get("kind")
            if kind in ("friend", "define") or not name or name[0] == "@" or "<" in name or "detail" in of or name.startswith(("operator", "~", "TERN_")):
                continue
            if of and (name == of.split("::")[-1] or kind == "typedef") or one.find("reimplements") is not None or "override" in (one.findtext("argsstring") or ""):
                continue
            self.checked += 1
            if kind == "enum":
                if not has_text(one) and not self.header_names(one, name):
                    self.report(one, of, name)
                values = one.findall("enumvalue")
                is_explained = has_text(one) or any(has_text(value) for value in values)
                for value in values:
                    self.checked += 1
                    text = value.findtext("name") or ""
                    if not has_text(value) and not is_explained and not self.header_names(one, text):
                        self.report(one, f"{of}::{name}" if of else name, text)
                continue
            if has_text(one) or documented[stem(one)] or (kind == "variable" and is_struct_documented) or self.header_names(one, name):
                continue
            self.report(one, of, name)

    def report(self, node: ET.Element, of: str, name: str) -> None:
        location = node.find("location")
        where = "" if location is None else f"include/{location.get('file', '').split('include/')[-1]}"
        self.missing.append(f"{where}: {of}::{name}" if of else f"{where}: {name}")

    def compound(self, compound: ET.Element) -> None:
        name = compound.findtext("compoundname") or ""
        kind = compound.get("kind")
        if "detail" in name.split("::") or compound.get("prot") == "private" or kind not in ("class", "struct", "union", "namespace", "group"):
            return
        if kind == "group":
            self.members(compound, "", False)
        elif kind != "namespace" and "<" not in name:  # specializations are what their templates are
            self.checked += 1
            is_documented = has_text(compound) or self.header_names(compound, name.split("::")[-1].split("<")[0].strip())
            if not is_documented:
                self.report(compound, "", name)
            self.members(compound, name.split("<")[0].strip(), is_documented)


def stem(member: ET.Element) -> str:
    return (member.findtext("name") or "").removeprefix("try_")


def main(folder: pathlib.Path) -> int:
    check = Check()
    for path in sorted(folder.glob("*.xml")):
        for compound in ET.parse(path).getroot().findall("compounddef"):
            check.compound(compound)
    for one in sorted(set(check.missing)):
        print(f"no comment: {one}")
    print(f"{check.checked} public names of C++ and C, {len(set(check.missing))} without a comment")
    return 1 if check.missing or check.checked < 1000 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
