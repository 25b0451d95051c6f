"""Each source includes the headers of the standard library, {fmt}, nlohmann/json and CLI11
whose names it uses, and reaches a header of Tern that has each name it uses. Builds that precompile these
headers, or compile several sources as one, do not notice a missing one."""

import functools
import re

import tree

# What a header is included for. Names that several headers bring, such as std::size_t, std::move and
# std::swap, are left out.
HEADERS = {
    "algorithm": "all_of any_of copy copy_n count_if equal fill fill_n find find_if is_sorted "
                 "lower_bound max max_element min min_element minmax none_of nth_element "
                 "partition remove remove_if replace reverse rotate shuffle sort stable_sort "
                 "transform unique upper_bound clamp binary_search",
    "array": "array",
    "atomic": "atomic atomic_ref atomic_flag memory_order_relaxed memory_order_acquire "
              "memory_order_release memory_order_acq_rel memory_order_seq_cst atomic_thread_fence",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_zero countr_zero has_single_bit popcount",
    "bitset": "bitset",
    "charconv": "from_chars to_chars",
    "chrono": "chrono",
    "cmath": "ceil floor isfinite isnan log log2 pow sqrt round fabs",
    "condition_variable": "condition_variable condition_variable_any",
    "deque": "deque",
    "exception": "exception_ptr current_exception rethrow_exception terminate uncaught_exceptions",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream fstream",
    "functional": "function bind reference_wrapper ref cref invoke less greater plus",
    "iostream": "cout cerr cin",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared enable_shared_from_this "
              "addressof construct_at destroy_at",
    "mutex": "mutex recursive_mutex timed_mutex lock_guard unique_lock scoped_lock call_once once_flag",
    "numeric": "accumulate iota gcd lcm reduce",
    "optional": "optional nullopt",
    "queue": "queue priority_queue",
    "random": "mt19937 mt19937_64 uniform_int_distribution random_device",
    "set": "set multiset",
    "shared_mutex": "shared_mutex shared_lock",
    "span": "span as_bytes as_writable_bytes",
    "sstream": "ostringstream istringstream stringstream",
    "stdexcept": "runtime_error logic_error invalid_argument out_of_range length_error",
    "string": "string to_string getline stoi stoul stoull",
    "string_view": "string_view",
    "thread": "thread jthread this_thread",
    "tuple": "tuple tie make_tuple apply forward_as_tuple",
    "type_traits": "is_same_v is_trivially_copyable_v is_const_v remove_cv_t remove_reference_t "
                   "conditional_t enable_if_t is_pointer_v decay_t underlying_type_t is_integral_v "
                   "remove_const_t invoke_result_t is_base_of_v is_convertible_v",
    "unordered_map": "unordered_map unordered_multimap",
    "unordered_set": "unordered_set",
    "variant": "variant visit get_if holds_alternative monostate",
    "vector": "vector",
    "cstring": "memcpy memset memcmp memmove strlen strcmp strncmp strerror",
}
HEADER_OF = {name: header for header, names in HEADERS.items() for name in names.split()}
# Several headers that bring the same.
EQUAL = {"iostream": {"ostream", "istream"}, "fmt/format.h": {"fmt/core.h", "fmt/ranges.h"},
         "nlohmann/json.hpp": {"nlohmann/json_fwd.hpp"}}
MOVED = {"fmt::join": "fmt/ranges.h"}  # since {fmt} 11
LIBRARIES = {"fmt": "fmt/format.h", "nlohmann": "nlohmann/json.hpp", "CLI": "CLI/CLI.hpp"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.M)
NAME = re.compile(r"(?<![\w:])(std|fmt|nlohmann|CLI)::(\w+)")


def own_header(root, path):
    """The header of the same name, whose includes its source need not repeat."""
    if path.suffix != ".cpp":
        return None
    beside = path.with_suffix(".hpp")
    if beside.exists():
        return beside
    parts = path.relative_to(root).with_suffix(".hpp").parts
    if parts[0] == "src":
        for folder in ("include/tern", "include/tern/detail"):
            public = root.joinpath(folder, *parts[1:])
            if public.exists():
                return public
    return None


# What a header of Tern declares outside of every class: code in namespaces is not indented.
DECLARED = re.compile(
    r"^(?:template <.*>[ \n])?(?:(?:class|struct|union|enum|enum class) (?:\[\[.*?\]\] )?(?:TERN_\w+ )?(\w+)\b(?!;)"
    r"|using (\w+) = |concept (\w+)|#[ ]*define (\w+)"
    r"|(?:\[\[\w+\]\] )?(?!using |namespace |return )\w[\w:<>,*&\[\] ]*[\w>*&\]] [*&]?(\w+_\w+)(?:\(| = |\{|\[))", re.M)
# Types, macros, and names of several words: a name of one word may be a variable's.
USED = re.compile(r"(?<![\w.:>])(?!(?:std|fmt|nlohmann|CLI)::)(?:[a-z]\w*::)*([A-Z]\w*|\w+_\w+)\b(?!::)")
# What a source declares itself, also inside of a class or a function.
OWN = re.compile(r"\b(?:class|struct|enum|union|using|typename|concept) (\w+)"
                 r"|(?:^|[(,;{<])\s*(?=[\w\[])(?!return\b|throw\b|else\b|case\b|co_\w+\b|goto\b|new\b|delete\b)"
                 r"[\w:<>,*&\[\] ]*?(?<!&&)(?<!<)(?<!>)(?<!:)[\w>*&\]] [*&]?(\w+_\w+)(?= = |[(;{\[,):])"
                 r"|, (\w+_\w+)(?= = )|auto&* \[([\w, ]+)\]", re.M)
FOLDERS = ("include", "src", "")  # where the compiler looks for a header of Tern


@functools.cache
def code_of(path):
    return tree.without_comments(path.read_text(), keep_strings=False)


@functools.cache
def words_of(path):
    return frozenset(re.findall(r"[A-Za-z_]\w*", code_of(path)))


@functools.cache
def own_names(path):
    return {name for pattern in (DECLARED, OWN) for match in pattern.finditer(code_of(path))
            for names in match.groups() if names for name in names.split(", ")}


@functools.cache
def includes_of(root, path):
    """The headers of Tern that a file includes itself."""
    names = INCLUDE.findall(tree.without_comments(path.read_text()))
    places = ([path.parent / name, *(root / folder / name for folder in FOLDERS)] for name in names)
    return tuple(found.resolve() for found in (next(filter(type(root).is_file, each), None) for each in places) if found)


def reached(root, path):
    """All headers of Tern that a file includes, itself or through others."""
    found, left = set(), [path]
    while left:
        for header in includes_of(root, left.pop()):
            if header not in found:
                found.add(header)
                left.append(header)
    return found


def unreached(root, paths):
    """A name that only headers of Tern declare, in a source that includes none of them."""
    declared_in = {}
    for path in paths:
        if path.suffix == ".hpp":
            for match in DECLARED.finditer(code_of(path)):
                name = next(filter(None, match.groups()))
                declared_in.setdefault(name, set()).add(path.resolve())
    for path in paths:
        if path.suffix != ".cpp":
            continue
        headers = reached(root, path)
        code = code_of(path)
        settled = set(own_names(path))
        for match in USED.finditer(code):
            name = match[1]
            if name in settled or name not in declared_in:
                continue
            settled.add(name)
            # A header may declare a type in a way that OWN does not see.
            names_of = words_of if name[0].isupper() else own_names
            if declared_in[name] & headers or any(name in names_of(header) for header in headers):
                continue
            where = " or ".join(sorted(each.relative_to(root).as_posix() for each in declared_in[name]))
            yield (f"{path.relative_to(root).as_posix()}:{tree.line_of(code, match.start())}: uses '{name}' "
                   f"and does not include {where}.")


def violations(root, paths):
    for path in paths:
        text = tree.without_comments(path.read_text(), keep_strings=True)
        included = set(INCLUDE.findall(text))
        header = own_header(root, path)
        if header:
            included |= set(INCLUDE.findall(header.read_text()))
        missing = set()
        code = code_of(path)
        for match in NAME.finditer(code):
            space, name = match.groups()
            needed = MOVED.get(match[0]) or LIBRARIES.get(space) or HEADER_OF.get(name)
            if needed and needed not in missing and not ({needed} | EQUAL.get(needed, set())) & included:
                missing.add(needed)
                yield (f"{path.relative_to(root).as_posix()}:{tree.line_of(code, match.start())}: uses "
                       f"'{match[0]}' and does not include <{needed}>.")


def main():
    root = tree.arguments(__doc__).root.resolve()
    paths = list(tree.sources(root, "include", "src", "tools", "bench", "examples"))
    tree.finish([*violations(root, paths), *unreached(root, paths)], f"the includes of {len(paths)} files")


main()
