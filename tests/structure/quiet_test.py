"""The library prints nothing, ends nothing, and asks neither the environment nor a clock."""

import re

import tree

LIST = "tests/structure/quiet_allowed.txt"

# Names that mean only one thing count wherever they stand.
NAMES = """cout cerr clog wcout wcerr stdout stderr STDOUT_FILENO STDERR_FILENO
    printf fprintf vprintf vfprintf dprintf fputs putchar putc fputc __builtin_printf syslog assert
    setenv putenv unsetenv perror quick_exit _Exit set_terminate
    getenv secure_getenv environ system_clock steady_clock high_resolution_clock utc_clock
    clock_gettime gettimeofday timespec_get sleep_for sleep_until usleep nanosleep clock_nanosleep
    srand random_device __builtin_trap""".split()
# Names that others may use too count as calls of the C or std function.
CALLS = "puts abort exit _exit terminate time clock sleep rand random print println".split()

NAME = re.compile(r"(?<![\w.])(?<!->)(" + "|".join(NAMES) + r")\b")
CALL = re.compile(r"\b(" + "|".join(CALLS) + r")\s*\(")
# What may stand before a name: a word or a type declares it, unless the word is one of these.
DECLARES = re.compile(r"(\w+|[^-]>|\w[&*])$")
BEFORE_A_CALL = {"return", "else", "do", "case", "throw", "co_return", "co_await", "co_yield",
                 "and", "or", "not"}


def is_call(name, before):
    """Whether the name, after that text, calls the C or std function, and not another's."""
    if before.endswith(("std::", "fmt::")):
        return True
    if name in ("print", "println") or before.endswith((".", "->")):
        return False
    if before.endswith("::"):
        return not re.search(r"[\w>]::$", before)
    declares = DECLARES.search(before)
    return not declares or declares[1] in BEFORE_A_CALL


def uses(path):
    """(name, line) of everything in the file that is not quiet."""
    text = tree.without_comments(path.read_text(), keep_strings=False)
    # An include names a header, such as <random>, and uses nothing.
    text = re.sub(r"^[ \t]*#[ \t]*include[^\n]*", "", text, flags=re.M)
    for match in NAME.finditer(text):
        yield match[1], tree.line_of(text, match.start(1))
    for match in CALL.finditer(text):
        before = text[max(0, match.start() - 80):match.start()].rstrip()
        if is_call(match[1], before):
            yield match[1], tree.line_of(text, match.start())


def main():
    root = tree.arguments(__doc__).root
    found = {path.relative_to(root).as_posix(): sorted(uses(path), key=lambda use: use[1])
             for path in tree.sources(root, "include", "src")}
    violations, allowed = [], set()
    for line, entry in tree.list_entries(root / LIST):
        path, name, reason = (entry.split(maxsplit=2) + ["", ""])[:3]
        allowed.add((path, name))
        if not reason:
            violations.append(f"{LIST}:{line}: an entry is a path, a name and a reason.")
        elif name not in [use for use, _ in found.get(path, [])]:
            violations.append(f"{LIST}:{line}: '{path}' does not use '{name}'.")
    for path, names in found.items():
        for name, line in names:
            if (path, name) not in allowed:
                violations.append(f"{path}:{line}: uses '{name}', which {LIST} does not allow here.")
    tree.finish(violations, f"{len(found)} files")


main()
