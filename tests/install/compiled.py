"""Stands in front of a compiler and takes objects from a build that has run the same command.

  compiled.py NOTES COMPILER ARGUMENT...

Where the notes have no such command, the compiler runs.
"""

import json
import os
import pathlib
import shlex
import shutil
import sys

WITH_VALUE = ("-o", "-MF", "-MT", "-MQ")


def parse(arguments):
    """The command without the files it writes, and those files by option.

    Precompiled headers are left out: tests/structure/includes_test.py checks the includes of sources.
    """
    rest, written = [], {}
    parts = iter(arguments)
    for part in parts:
        if part in WITH_VALUE:
            written[part] = next(parts, "")
        elif part == "-include":
            header = next(parts, "")
            if not header.endswith("/cmake_pch.hxx"):
                rest += [part, header]
        elif part not in ("-MD", "-MMD", "-Winvalid-pch"):
            rest.append(part)
    return "\0".join(rest), written


def write_notes(file, build):
    """Notes what a build has compiled: nothing if it does not say how."""
    listed = build / "compile_commands.json"
    objects = {}
    for entry in json.loads(listed.read_text()) if listed.is_file() else []:
        command, written = parse(shlex.split(entry["command"]))
        made = pathlib.Path(entry["directory"]) / written.get("-o", "")
        # One that is older than its source will be compiled again, and so it is here.
        if made.is_file() and made.stat().st_mtime >= os.stat(entry["file"]).st_mtime:
            objects[command] = str(made)
    file.write_text(json.dumps(objects))


def main():
    notes, *arguments = sys.argv[1:]
    command, written = parse(arguments)
    made = json.loads(pathlib.Path(notes).read_text()).get(command)
    if made is None or "-o" not in written:
        os.execvp(arguments[0], arguments)
    shutil.copyfile(made, written["-o"])
    if "-MF" in written:
        pathlib.Path(written["-MF"]).write_text(f"{written['-o']}:\n")
    with open(f"{notes}.taken", "a") as taken:
        taken.write(f"{written['-o']}\n")


if __name__ == "__main__":
    main()
