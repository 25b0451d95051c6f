"""Links from names in C++ signatures to their declarations, by an index that is built once.

Sphinx searches the declarations for each name of each signature one after another, which takes minutes for a few thousand
signatures. Here a name that no declaration has stays text, and a name that one type has becomes a link to it.
"""

from __future__ import annotations

import collections
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

TYPES = {"class", "struct", "union", "enum", "type", "concept"}


class LinkNames(SphinxPostTransform):
    default_priority = 5  # before Sphinx resolves references

    def run(self, **_: Any) -> None:
        index = index_of(self.env)
        builder = self.app.builder
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("refdomain") not in ("cpp", "c"):
                continue
            found = index.get(str(node["reftarget"]).split("<")[0].split("::")[-1].strip(), [])
            contents = [child.deepcopy() for child in node.children]
            if len(found) != 1 or str(node["reftarget"]).startswith("std"):
                node.replace_self(contents)
                continue
            name, page, anchor = found[0]
            wrapped = nodes.inline("", "", *contents)
            node.replace_self(make_refnode(builder, self.env.docname, page, anchor, wrapped, name))


def index_of(env: Any) -> dict[str, list[tuple[str, str, str]]]:
    """The types of the references by their last names."""
    if not hasattr(env, "tern_names"):
        names: dict[str, set[tuple[str, str, str]]] = collections.defaultdict(set)
        for domain in ("cpp", "c"):
            for name, _, kind, page, anchor, _ in env.domains[domain].get_objects():
                if kind in TYPES:
                    names[name.split("::")[-1]].add((name, page, anchor))
        env.tern_names = {key: sorted(values) for key, values in names.items()}
    return env.tern_names


def forget(app: Sphinx, env: Any) -> None:
    if hasattr(env, "tern_names"):
        del env.tern_names


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(LinkNames)
    app.connect("env-updated", forget)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
