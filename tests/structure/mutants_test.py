"""Each mistake that scripts/mutants plants still has its place in the sources."""

import subprocess
import sys

import tree


def main():
    root = tree.arguments(__doc__).root
    done = subprocess.run([sys.executable, "-B", root / "scripts/mutants", "--check", "--root", root])
    sys.exit(done.returncode)


main()
