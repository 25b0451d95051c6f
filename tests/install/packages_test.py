"""The Debian packages of the build hold what they should, and programs are built with them by pkg-config and by CMake.

The packages are unpacked into a folder with blanks in its name, not installed: pkg-config and CMake find the moved
prefix. scripts/packages also runs this test on the shared library.
"""

import argparse
import os
import pathlib
import re
import shlex
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

    is_shared = bool(re.search(r"^BUILD_SHARED_LIBS:BOOL=(ON|1|TRUE)$", (options.build / "CMakeCache.txt").read_text(), re.M))
    version = re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(\d+\.\d+)", (options.build / "CMakeCache.txt").read_text(), re.M)[1]

    with tempfile.TemporaryDirectory(prefix="tern in a path with blanks ") as folder:
        scratch = pathlib.Path(folder)
        run("cpack", "-G", "DEB", "-B", scratch / "packages", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", cwd=options.build)
        packages = sorted((scratch / "packages").glob("*.deb"))
        names = {run("dpkg-deb", "-f", package, "Package").strip() for package in packages}
        wanted = {"libtern-dev", "tern-tools", *([f"libtern{version}"] if is_shared else [])}
        check(names == wanted, f"cpack made {sorted(names)} and not {sorted(wanted)}.")
        root = scratch / "moved"
        for package in packages:
            fields = run("dpkg-deb", "-f", package)
            check("Depends: libc6" in fields, f"{package.name} has no dependencies:\n{fields}")
            listed = run("dpkg-deb", "-c", package)
            strange = [line for line in listed.splitlines() if " ./usr/" not in line and not line.endswith((" ./", " ./usr"))]
            check(not strange, f"{package.name} holds files outside of /usr: {strange[:3]}")
            if is_shared and "libtern-dev" in package.name:
                check(f"libtern{version} (= " in fields, f"{package.name} does not depend on its library:\n{fields}")
            run("dpkg-deb", "-x", package, root)
        check((root / "usr/bin/tern").is_file(), "tern-tools has no /usr/bin/tern.")
        check("usage" in run(root / "usr/bin/tern", "--help").lower(), "the packaged command prints no help.")

        paths = [path.parent for path in root.rglob("tern.pc")]
        check(len(paths) == 1, f"the packages have {len(paths)} files tern.pc.")
        environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(paths[0])}
        check(run("pkg-config", "--validate", "tern", env=environment) == "", "tern.pc is not valid.")
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "tern", env=environment))
        check(str(root) in " ".join(os.path.normpath(flag[2:]) for flag in flags if flag[:2] in ("-I", "-L")),
              f"pkg-config does not follow the prefix: {flags}")
        program = scratch / "consumer"
        run(options.compiler, "-std=c++20", HERE / "consumer.cpp", "-o", program, *flags)
        library = next(root.rglob("libtern.*")).parent
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
        print("with pkg-config:", run(program, env=environment).strip())
        needed = run("readelf", "--dynamic", program)
        check((f"libtern.so.{version}" in needed) == is_shared, f"the program needs the libraries:\n{needed}")
        run("cmake", "-S", HERE / "installed", "-B", scratch / "build", f"-DCMAKE_CXX_COMPILER={options.compiler}",
            f"-DCMAKE_PREFIX_PATH={root / 'usr'}")
        run("cmake", "--build", scratch / "build")
        print("with CMake:", run(scratch / "build/consumer", env=environment).strip())
        print("with CMake:", run(scratch / "build/fake_cuda", env=environment).strip())
        print("with CMake:", run(scratch / "build/consumer_in_c", env=environment).strip())
        print("packages:", ", ".join(f"{one.name} ({one.stat().st_size >> 10} KiB)" for one in packages))
    return 0


sys.exit(main())
