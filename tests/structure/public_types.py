"""Finds the types and functions that a public header declares, without a compiler."""

import re
from typing import NamedTuple

import tree

TOKEN = re.compile(r"\btemplate\s*<|\b(?:public|private|protected)\s*:(?!:)"
                   r"|\b(?:namespace|class|struct|union|enum)\b|[{}();]")
# The name behind class, struct, union or enum, if a definition follows that is no specialization.
NAME = re.compile(r"(?:\s*(?:class|struct)\b)?(?:\s*\[\[.*?\]\]|\s*\w+_EXPORT\b)*"
                  r"\s*([A-Za-z_]\w*)\s*(?:final\b\s*)?(?::(?!:)|$)")
HIDDEN_NAMESPACES = {"detail", "internal", "std"}


def matching(text, start, opening, closing):
    """The position behind the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at + 1
    return len(text)


# The name before the parameters of a function. What else has parentheses before them is skipped.
FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*$")
NO_FUNCTION = {"requires", "noexcept", "decltype", "alignas", "explicit", "static_assert", "operator"}


class Function(NamedTuple):
    owner: str  # the type it is a member of; empty at namespace scope
    name: str
    head: str  # the declaration without its body
    line: int


def declarations(text):
    """The type names (str) and Functions at namespace scope, or public in such a type."""
    text = tree.without_comments(text, keep_strings=False)
    # Macros and includes. Line numbers stay as they are.
    text = re.sub(r"(?m)^[ \t]*#(?:\\\n|.)*", lambda one: "\n" * one[0].count("\n"), text)
    is_public = [True]  # of each open scope: whether a definition is public at this point
    owners = [""]  # of each open scope: its type
    word, behind = None, 0  # the last class, struct, ... of the declaration, and the position behind it
    begin, function = 0, None  # where the declaration begins, and the function it declares
    at = 0
    while token := TOKEN.search(text, at):
        kind, at = token[0], token.end()
        is_over = kind in "{};" or kind.endswith(":")
        if is_over and function and is_public[-1]:
            yield Function(owners[-1], function[1], text[begin:token.start()].strip(),
                           tree.line_of(text, function.start(1)))
        if kind.startswith("template"):
            begin = at = matching(text, at - 1, "<", ">")
        elif kind == "(":
            name = None if function or word else FUNCTION.search(text, begin, token.start())
            # Behind a `=` stands the initializer of a variable.
            if name and name[1] not in NO_FUNCTION and "=" not in text[begin:name.start()]:
                function = name
            at = matching(text, at - 1, "(", ")")
        elif kind.endswith(":"):
            is_public[-1] = kind.startswith("public")
        elif kind == "}":
            if len(is_public) > 1:
                is_public.pop()
                owners.pop()
            word = None
        elif kind == ";":
            word = None
        elif kind != "{":
            if word != "enum":
                word, behind = kind, at
        else:
            head = text[behind:token.start()]
            name = word and NAME.match(head)
            is_hidden = not is_public[-1] or HIDDEN_NAMESPACES & set(re.findall(r"\w+", head))
            if word == "namespace" and not is_hidden:
                is_public.append(True)
                owners.append("")
            elif name and word != "namespace" and is_public[-1]:
                yield name[1]
                is_public.append(word != "class")
                owners.append(name[1])
            else:  # a function, an initializer, a hidden type or namespace, a specialization
                at = matching(text, at - 1, "{", "}")
            word = None
        if is_over:
            begin, function = at, None


def public_types(text):
    """The names of types that are defined at namespace scope, or with public access in such a type."""
    return [one for one in declarations(text) if isinstance(one, str)]


def public_functions(text):
    """The functions that are declared at namespace scope, or with public access in such a type."""
    return [one for one in declarations(text) if isinstance(one, Function)]
