"""The numbers of public headers, headers in detail/ and public types do not grow."""

import public_types
import tree

# Raise this number only with a header that users need; a type that only the library needs goes to
# src/, or to include/tern/detail/ where a template or an inline function needs it.
MAX_PUBLIC_HEADERS = 78
MAX_DETAIL_HEADERS = 37
# Without the exception classes, which a macro generates from the list of error codes.
MAX_PUBLIC_TYPES = 223


def main():
    root = tree.arguments(__doc__).root
    violations = []
    detail = len(list(tree.sources(root, "include/tern/detail")))
    headers = len(list(tree.sources(root, "include/tern"))) - detail
    if headers > MAX_PUBLIC_HEADERS:
        violations.append(f"include/tern:1: has {headers} public headers, and {MAX_PUBLIC_HEADERS} "
                          "are allowed. Move what users do not need to src/.")
    if detail > MAX_DETAIL_HEADERS:
        violations.append(f"include/tern/detail:1: has {detail} headers, and {MAX_DETAIL_HEADERS} are "
                          "allowed. Move what no public header needs to src/.")
    types = sum(len(public_types.public_types(path.read_text()))
                for path in tree.sources(root, "include/tern")
                if root / "include/tern/detail" not in path.parents)
    if types > MAX_PUBLIC_TYPES:
        violations.append(f"include/tern:1: has {types} public types, and {MAX_PUBLIC_TYPES} are "
                          "allowed. Move what users do not name to src/ or to include/tern/detail/.")
    tree.finish(violations, f"{headers} public headers, {detail} in detail/, {types} public types")


if __name__ == "__main__":
    main()
