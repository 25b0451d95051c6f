"""The Debian packages of the build hold what they should, and a program is built with them by pkg-config.

The packages are unpacked into a folder, not installed: the prefix moves, as pkg-config allows.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77


def run(*command, **keywords):
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **keywords)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)}\nended with {done.returncode}.")
    return done.stdout


def check(holds, sentence):
    if not holds:
        sys.exit(sentence)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    options = parser.parse_args()
    for tool in ("cpack", "dpkg-deb", "pkg-config"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is missing")
            return SKIPPED

    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        # The library is built; without the preinstall step cpack does not build everything else too.
        run("cpack", "-G", "DEB", "-B", scratch / "packages", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",
            "-D", "CPACK_CMAKE_GENERATOR=", cwd=options.build)
        packages = sorted((scratch / "packages").glob("*.deb"))
        names = {run("dpkg-deb", "-f", package, "Package").strip() for package in packages}
        check({"libtern-dev", "tern-tools"} <= names, f"cpack made {sorted(names)}.")
        root = scratch / "moved"
        for package in packages:
            fields = run("dpkg-deb", "-f", package)
            check("Depends: libc6" in fields, f"{package.name} has no dependencies:\n{fields}")
            listed = run("dpkg-deb", "-c", package)
            strange = [line for line in listed.splitlines() if " ./usr/" not in line and not line.endswith((" ./", " ./usr"))]
            check(not strange, f"{package.name} holds files outside of /usr: {strange[:3]}")
            run("dpkg-deb", "-x", package, root)
        check((root / "usr/bin/tern").is_file(), "tern-tools has no /usr/bin/tern.")
        check("usage" in run(root / "usr/bin/tern", "--help").lower(), "the packaged command prints no help.")

        paths = [path.parent for path in root.rglob("tern.pc")]
        check(len(paths) == 1, f"the packages have {len(paths)} files tern.pc.")
        environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(paths[0])}
        check(run("pkg-config", "--validate", "tern", env=environment) == "", "tern.pc is not valid.")
        flags = run("pkg-config", "--cflags", "--libs", "tern", env=environment).split()
        check(str(root) in " ".join(os.path.normpath(flag[2:]) for flag in flags if flag[:2] in ("-I", "-L")),
              f"pkg-config does not follow the prefix: {flags}")
        program = scratch / "consumer"
        run(options.compiler, "-std=c++20", HERE / "consumer.cpp", "-o", program, *flags)
        library = next(root.rglob("libtern.*")).parent
        print(run(program, env={**os.environ, "LD_LIBRARY_PATH": str(library)}).strip())
        print("packages:", ", ".join(f"{one.name} ({one.stat().st_size >> 10} KiB)" for one in packages))
    return 0


sys.exit(main())
