"""Keeps members out of the navigation: it lists pages, and the list beside a page has the members of that page.

Sphinx copies the whole navigation for each page. With the members of all classes in it, that takes most of the time.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment.adapters.toctree import document_toc


def prune(app: Sphinx, env: Any) -> None:
    env.tern_members = {}
    for page, contents in env.tocs.items():
        if page.startswith("reference/") and not page.endswith("/index"):
            env.tern_members[page] = contents.deepcopy()
            for item in contents.findall(nodes.list_item):
                for members in [child for child in item.children if isinstance(child, nodes.bullet_list)]:
                    item.remove(members)


def show(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    env: Any = app.env
    full = getattr(env, "tern_members", {}).get(page)
    if full is None:
        return
    pruned, env.tocs[page] = env.tocs[page], full
    try:
        context["toc"] = app.builder.render_partial(document_toc(env, page, app.tags))["fragment"]  # type: ignore[attr-defined]
        context["display_toc"], context["furo_hide_toc"] = True, False
    finally:
        env.tocs[page] = pruned


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-updated", prune)
    app.connect("html-page-context", show, priority=900)  # after the theme, which hides a short list
    return {"parallel_read_safe": True, "parallel_write_safe": True}
