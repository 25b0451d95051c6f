"""The pictures that scripts/pictures draws show what their pages state."""

import pathlib
import subprocess
import sys

import tree


def main():
    root = tree.arguments(__doc__).root
    # The script of this tree also draws those of a planted tree.
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts/pictures"
    sys.exit(subprocess.run([sys.executable, "-B", script, "--check", "--root", root], check=False).returncode)


main()
