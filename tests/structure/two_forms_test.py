"""A public operation that can fail has two forms, try_x() and x(), as docs/guide/errors.md says."""

import re

import public_types
import tree

LIST = "tests/structure/single_form.txt"
GUIDE = "docs/guide/errors.md"
NAMED = re.compile(r"`((?:\w+::)?\w+)\(\)`")


def functions(root):
    """{(owner, name): [(header, Function)]} of the public headers."""
    found = {}
    for path in tree.sources(root, "include/tern"):
        if root / "include/tern/detail" in path.parents:
            continue
        shown = path.relative_to(root).as_posix()
        for one in public_types.public_functions(path.read_text()):
            found.setdefault((one.owner, one.name), []).append((shown, one))
    return found


def shown_name(owner, name):
    return f"{owner}::{name}" if owner else name


def can_throw(function):
    """Whether the function is one that throws for its caller: it takes the call site."""
    return "CallSite" in function.head and not re.search(r"\bnoexcept\b", function.head)


def single_forms(found):
    """{name: (where, the form that is missing)}"""
    single = {}
    for (owner, name), places in found.items():
        header, first = places[0]
        if name.startswith("try_"):
            # The base class of an override has the other form; that of try_make() is a constructor.
            other = owner if name == "try_make" else name.removeprefix("try_")
            is_single = not any("override" in one.head for _, one in places)
        else:
            other = "try_" + name
            is_single = name != owner and any(can_throw(one) for _, one in places)
        if is_single and (owner, other) not in found:
            single[shown_name(owner, name)] = (f"{header}:{first.line}", shown_name(owner, other))
    return single


def violations(root, found):
    for (owner, name), places in found.items():
        for header, one in places:
            if name.startswith("try_") and not re.search(r"\bResult<", one.head):
                yield f"{header}:{one.line}: {shown_name(owner, name)}() returns no Result."
    single = single_forms(found)
    listed = {}
    for line, entry in tree.list_entries(root / LIST):
        name, _, reason = entry.partition(" ")
        listed[name] = line
        if not reason:
            yield f"{LIST}:{line}: an entry is a name and a reason."
        elif name not in single:
            yield f"{LIST}:{line}: there is no public '{name}', or it has both forms."
    for name, (where, other) in single.items():
        if name not in listed:
            yield f"{where}: {name}() has no {other}(), and {LIST} does not allow that."
    text = (root / GUIDE).read_text()
    exceptions = re.search(r"differ from this pattern:\n\n(.*?)\n\n[^-]", text, re.DOTALL)
    if not exceptions:
        yield f"{GUIDE}:1: does not say which functions have one form."
        return
    names = {name for _, name in found}
    for match in NAMED.finditer(exceptions[1]):
        line = tree.line_of(text, exceptions.start(1) + match.start())
        owner, _, name = match[1].rpartition("::")
        if owner and match[1] not in listed:
            yield f"{GUIDE}:{line}: '{match[1]}' is not in {LIST}."
        elif not owner and name not in names | {"try_x"}:
            yield f"{GUIDE}:{line}: there is no public '{name}'."


def main():
    root = tree.arguments(__doc__).root
    found = functions(root)
    tree.finish(violations(root, found), f"the forms of {len(found)} public functions")


main()
