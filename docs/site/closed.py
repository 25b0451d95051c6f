"""Fails if a page of the built site has a dead link or loads something from a network: ``closed.py HTML``."""

from __future__ import annotations

import html.parser
import pathlib
import sys
import urllib.parse

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # (target, whether the browser loads it without a click)
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        for key in ("id", "name"):
            if value := values.get(key):
                self.anchors.add(value)
        for key in ("href", "src"):
            if value := values.get(key):
                is_loaded = (tag, key) in LOADED and not (tag == "link" and values.get("rel") in ("canonical", "index", "search", "next", "prev"))
                self.links.append((value, is_loaded))


def main(folder: pathlib.Path) -> int:
    pages = {path.relative_to(folder).as_posix(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    problems = []
    checked = 0
    for name, page in pages.items():
        for link, is_loaded in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if is_loaded and parts.scheme != "data":
                    problems.append(f"{name}: loads {link}")
                continue
            checked += 1
            path = (folder / name).parent / urllib.parse.unquote(parts.path) if parts.path else folder / name
            if not path.exists():
                problems.append(f"{name}: dead link {link}")
                continue
            to = path.resolve().relative_to(folder.resolve()).as_posix()
            if parts.fragment and to in pages and urllib.parse.unquote(parts.fragment) not in pages[to].anchors:
                problems.append(f"{name}: no such place {link}")
    print("\n".join(sorted(set(problems))))
    print(f"{len(pages)} pages, {checked} links, {len(set(problems))} problems")
    return 1 if problems or len(pages) < 100 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
