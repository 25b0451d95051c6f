"""Finds the types that a public header defines, without a compiler."""

import re

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


def public_types(text):
    """The names of types that are defined at namespace scope, or with public access in such a type."""
    text = tree.without_comments(text, keep_strings=False)
    text = re.sub(r"(?m)^[ \t]*#(?:\\\n|.)*", "", text)  # macros and includes
    found = []
    is_public = [True]  # of each open scope: whether a definition is public at this point
    word, behind = None, 0  # the last class, struct, ... of the declaration, and the position behind it
    at = 0
    while token := TOKEN.search(text, at):
        kind, at = token[0], token.end()
        if kind.startswith("template"):
            at = matching(text, at - 1, "<", ">")
        elif kind == "(":
            at = matching(text, at - 1, "(", ")")
        elif kind.endswith(":"):
            is_public[-1] = kind.startswith("public")
        elif kind == "}":
            if len(is_public) > 1:
                is_public.pop()
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
            elif name and word != "namespace" and is_public[-1]:
                found.append(name[1])
                is_public.append(word != "class")
            else:  # a function, an initializer, a hidden type or namespace, a specialization
                at = matching(text, at - 1, "{", "}")
            word = None
    return found
