"""The build backend: scikit-build-core, and source distributions that contain the library.

In the tree, the library is in the folder above this one. In a source distribution, the library is in the folder `tern`.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

MODULE = ("CMakeLists.txt", "LICENSE", "README.md", "exports.map", "src", "ternmem")
LIBRARY = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src")

# What differs in the pyproject.toml of a source distribution.
IN_DISTRIBUTION = {
    'build-backend = "build_backend"\nbackend-path = ["."]\n': 'build-backend = "scikit_build_core.build"\n',
    'input = "../include/': 'input = "tern/include/',
}


def copy(names: tuple[str, ...], source: pathlib.Path, target: pathlib.Path) -> None:
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            target.mkdir(exist_ok=True)
            shutil.copy(source / name, target / name)


def build_sdist(sdist_directory: str, config_settings: Mapping[str, list[str] | str] | None = None) -> str:
    module = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        whole = pathlib.Path(folder) / "ternmem"
        copy(MODULE, module, whole)
        copy(LIBRARY, module.parent, whole / "tern")
        settings = (module / "pyproject.toml").read_text()
        for here, there in IN_DISTRIBUTION.items():
            if settings.count(here) != 1:
                raise SystemExit(f"python/pyproject.toml needs {here!r} once, which a source distribution replaces.")
            settings = settings.replace(here, there)
        (whole / "pyproject.toml").write_text(settings)
        with contextlib.chdir(whole):
            return str(backend.build_sdist(str(module / sdist_directory), dict(config_settings or {})))
