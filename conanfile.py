"""The Conan recipe of Tern. `conan create .` builds the package, and builds and runs programs with it.

The libraries that Tern is built with come from other recipes. If the system has them, a profile can say so:

  [platform_requires]
  fmt/9.1.0
"""

import pathlib
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load


class Tern(ConanFile):
    name = "tern"
    description = "Memory that lives on hosts and accelerators"
    license = "MIT"
    topics = ("memory", "gpu", "cuda", "opencl", "allocator")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "tools": [True, False]}
    default_options = {"shared": False, "fPIC": True, "tools": False}
    options_description = {"tools": "Build the tern command, which needs CLI11 and nlohmann-json"}
    implements = ["auto_shared_fpic"]
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "tools/*", "bench/*"
    test_package_folder = "tests/install/conan"

    def set_version(self):
        header = load(self, pathlib.Path(self.recipe_folder) / "include/tern/core/version.hpp")
        self.version = re.search(r'^#define TERN_VERSION "(\S+)"', header, re.M)[1]

    def validate(self):
        check_min_cppstd(self, 20)

    def requirements(self):
        # Tern uses only the headers, and programs that use Tern need none of them.
        private = {"headers": True, "libs": False, "run": False, "visible": False}
        self.requires("fmt/[>=9 <13]", **private)
        if self.options.tools:
            self.requires("cli11/[>=2 <3]", **private)
            self.requires("nlohmann_json/[>=3 <4]", **private)

    def layout(self):
        self.folders.build = "build"
        self.folders.generators = "build/generators"

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TERN_BUILD_TESTS"] = False
        toolchain.cache_variables["TERN_BUILD_EXAMPLES"] = False
        toolchain.cache_variables["TERN_BUILD_TOOLS"] = bool(self.options.tools)
        for found in self.dependencies.host.values():
            if found.package_folder:  # a library of the system has none, and CMake finds it
                toolchain.cache_variables[f"TERN_{found.ref.name.upper()}_SOURCE"] = str(found.package_folder)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, pathlib.Path(self.package_folder) / "licenses")
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "tern")
        self.cpp_info.set_property("cmake_target_name", "tern::all")  # both components; its default name is tern::tern
        library = self.cpp_info.components["tern"]
        library.set_property("cmake_target_name", "tern::tern")
        library.set_property("pkg_config_name", "tern")
        library.libs = ["tern"]
        library.system_libs = ["pthread", "dl"]
        fake = self.cpp_info.components["fake_cuda"]
        fake.set_property("cmake_target_name", "tern::fake_cuda")
        fake.libs = ["tern_fake_cuda"]
        fake.requires = ["tern"]
        fake.exelinkflags = ["-Wl,--undefined=tern_fake_cuda"]
        fake.sharedlinkflags = ["-Wl,--undefined=tern_fake_cuda"]
