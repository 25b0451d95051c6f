"""Writes the reference of the Python module: one page for each public module, from the stubs and the sources.

Nothing is imported, so the pages do not need a built module.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator

from sphinx.ext.napoleon import Config, NumpyDocstring

settings = Config(napoleon_use_param=True, napoleon_use_rtype=False, napoleon_use_ivar=True)
# Methods whose meaning is that of the language.
SELF_EVIDENT = {"__init__", "__repr__", "__eq__", "__ne__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__len__", "__exit__", "__enter__",
                "__iter__", "__next__", "__getattr__", "__buffer__", "__await__", "__del__", "__str__", "__bool__", "__contains__",
                "__getitem__", "__setitem__", "__add__", "__call__", "__dir__", "__new__", "__array__", "__dlpack__", "__dlpack_device__",
                "__arrow_c_array__", "__arrow_c_schema__", "__arrow_c_stream__", "__arrow_c_device_array__", "__cuda_stream__", "__index__", "__int__", "__aenter__",
                "__aexit__", "__cuda_array_interface__", "__array_interface__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"}
Node = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


class Reader:
    def __init__(self, package: pathlib.Path) -> None:
        self.package = package
        self.trees: dict[pathlib.Path, ast.Module] = {}
        self.undocumented: list[str] = []

    def tree(self, path: pathlib.Path) -> ast.Module:
        if path not in self.trees:
            self.trees[path] = ast.parse(path.read_text())
        return self.trees[path]

    def path_of(self, module: str) -> pathlib.Path:
        """The file of a module inside of the package: ``_core.sim``, ``torch``, or nothing for the package."""
        base = self.package.joinpath(*module.split(".")) if module else self.package
        for one in (base.with_suffix(".pyi"), base / "__init__.pyi", base.with_suffix(".py"), base / "__init__.py"):
            if one.is_file():
                return one
        raise FileNotFoundError(base)

    def public(self, module: str) -> list[str]:
        names: list[str] = []
        for node in self.tree(self.path_of(module)).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
            if any(isinstance(one, ast.Name) and one.id == "__all__" for one in targets) and isinstance(node.value, ast.List):
                for one in node.value.elts:
                    if isinstance(one, ast.Constant):
                        names.append(one.value)
        if module == "":
            names += self.public("errors")
        return sorted(set(names) - {"__version__"}, key=lambda name: (name.lower(), name))

    def find(self, module: str, name: str) -> list[Node]:
        """The definitions of a name, also if the module imports it from another module of the package."""
        path = self.path_of(module)
        found: list[Node] = []
        for node in self.tree(path).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                found.append(node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                found.append(node)
            elif isinstance(node, ast.Assign) and any(name in [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]
                                                      for target in node.targets):
                found.append(node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    source = node.module or ""
                    if node.level == 0:
                        if not source.startswith("ternmem"):
                            continue
                        source = source.removeprefix("ternmem").lstrip(".")
                    if (alias.asname or alias.name) == name and (source or node.level):
                        if node.level and not source:
                            continue  # a module of the package
                        found += self.find(source, alias.name)
                    elif alias.name == "*":
                        found += self.find(source, name)
        return found

    # --- reStructuredText

    def text(self, docstring: str | None, indent: str) -> list[str]:
        if not docstring:
            return []
        lines = NumpyDocstring(inspect.cleandoc(docstring), settings).lines()
        return [indent + line if line else "" for line in [*lines, ""]]

    def members(self, node: ast.ClassDef, where: str) -> Iterator[str]:
        seen: set[str] = set()
        for one in node.body:
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = one.name
                is_special = name.startswith("__")
                decorators = [ast.unparse(each) for each in one.decorator_list]
                if (name.startswith("_") and not is_special) or any(each.endswith((".setter", ".deleter")) for each in decorators):
                    continue
                docstring = ast.get_docstring(one)
                if is_special and not docstring:
                    continue
                if not docstring and not is_special and name not in seen and "typing.overload" not in decorators and "overload" not in decorators:
                    self.undocumented.append(f"{where}.{name}")
                seen.add(name)
                if name == "__init__":
                    yield from self.text(docstring, "      ")
                    continue
                if any(each in ("property", "functools.cached_property", "cached_property") for each in decorators):
                    yield f"   .. py:property:: {name}"
                    if one.returns is not None:
                        yield f"      :type: {ast.unparse(one.returns)}"
                else:
                    yield f"   .. py:method:: {name}{signature(one)}"
                    for kind in ("staticmethod", "classmethod"):
                        if kind in decorators:
                            yield f"      :{kind}:"
                if name in getattr(self, "listed", set()):
                    yield "      :no-index:"
                yield ""
                yield from self.text(docstring, "      ")
            elif isinstance(one, (ast.Assign, ast.AnnAssign)):
                for name in named(one):
                    if not name.startswith("_"):
                        yield f"   .. py:attribute:: {name}"
                        if isinstance(one, ast.AnnAssign):
                            yield f"      :type: {ast.unparse(one.annotation)}"
                        yield ""

    def entry(self, module: str, name: str) -> Iterator[str]:
        where = f"ternmem.{module}.{name}" if module else f"ternmem.{name}"
        nodes = self.find(module, name)
        if not nodes:
            self.undocumented.append(f"{where} (no definition found)")
        is_first = True
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                init = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
                bases = [ast.unparse(base) for base in node.bases]
                yield f".. py:class:: {name}{signature(init[0], is_result_shown=False) if init else ''}"
                yield ""
                if bases:
                    yield f"   Base classes: {', '.join(f'``{base}``' for base in bases)}."
                    yield ""
                docstring = ast.get_docstring(node)
                if not docstring:
                    self.undocumented.append(where)
                yield from self.text(docstring, "   ")
                yield from self.members(node, where)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f".. py:function:: {name}{signature(node)}"
                if not is_first:
                    yield "   :no-index:"
                yield ""
                docstring = ast.get_docstring(node)
                if not docstring and is_first:
                    self.undocumented.append(where)
                yield from self.text(docstring, "   ")
            else:
                yield f".. py:data:: {name}"
                yield ""
            is_first = False


def named(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, is_result_shown: bool = True) -> str:
    arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): ..."))).body[0].args  # type: ignore[attr-defined]
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
            break
    result = f" -> {ast.unparse(node.returns)}" if is_result_shown and node.returns is not None else ""
    return f"({ast.unparse(arguments)}){result}"


def modules(package: pathlib.Path) -> list[str]:
    """The public modules of the package: the package itself first."""
    names = [path.stem for path in package.glob("*.py") if not path.stem.startswith("_")]
    return ["", *sorted(set(names) - {"summary", "tour", "unified_buffer", "buffer_pool", "errors"})]


def write(package: pathlib.Path, target: pathlib.Path) -> list[str]:
    """Write the pages. Return the public names without a docstring."""
    target.mkdir(parents=True, exist_ok=True)
    reader = Reader(package)
    pages = modules(package)
    tree, table = [".. toctree::", "   :hidden:", ""], [".. list-table::", "   :widths: 32 68", ""]
    for module in pages:
        title = f"ternmem.{module}" if module else "ternmem"
        lines = [title, "=" * len(title), "", f".. py:module:: {title}", ""]
        docstring = ast.get_docstring(reader.tree(reader.path_of(module)))
        if not docstring:
            reader.undocumented.append(title)
        lines += reader.text(docstring, "")
        tree.append(f"   {title}")
        table += [f"   * - :doc:`{title} <{title}>`", f"     - {' '.join((docstring or '').split(chr(10) * 2)[0].split())}"]
        names = reader.public(module)
        for name in names:
            if not (module == "" and name in pages):
                lines += [*reader.entry(module, name), ""]
        (target / f"{title}.rst").write_text("\n".join(lines) + "\n")
    title = "Python reference"
    (target / "index.rst").write_text(f"{title}\n{'=' * len(title)}\n\nThe module ``ternmem``, and the modules for other libraries. "
                                      "The guide begins at :doc:`/guide/python-start`.\n\n" + "\n".join([*tree, "", *table, ""]))
    return reader.undocumented
