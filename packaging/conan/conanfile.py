"""Recipe of Conan 2: conan create packaging/conan. The version is that of CMakeLists.txt."""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, rmdir
from conan.tools.gnu import PkgConfigDeps

PARTS = {"io": "IO", "models": "MODELS", "viewer": "VIEWER", "app": "APP", "distributed": "DISTRIBUTED"}


class Polyhead(ConanFile):
    name = "polyhead"
    description = "Multi-head attention on CPUs, forward and backward"
    license = "MIT"
    topics = ("attention", "transformer", "cpu")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "instruction_sets": ["ANY"], **{part: [True, False] for part in PARTS}}
    # By default the package has the core alone, as in a project that adds polyhead as a subdirectory.
    default_options = {"shared": False, "fPIC": True, "instruction_sets": "all", **dict.fromkeys(PARTS, False)}

    @property
    def _root(self):
        return Path(self.recipe_folder).parents[1]

    def set_version(self):
        self.version = self.version or re.search(r"project\(polyhead VERSION ([0-9.]+)", (self._root / "CMakeLists.txt").read_text())[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "apps/*", "viewer/*", "models/*"):
            copy(self, pattern, src=str(self._root), dst=self.export_sources_folder, excludes=("*_test.cc", "build*"))

    def configure(self):
        if self.options.shared:
            self.options.rm_safe("fPIC")
        if self.options.app:
            self.options.models = self.options.viewer = True
        if self.options.models:
            self.options.io = True

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def requirements(self):
        if self.options.io or self.options.viewer:
            self.requires("nlohmann_json/[>=3.10 <4]")
        if self.options.models:
            self.requires("utf8proc/[>=2.6 <3]")
            self.requires("oniguruma/[>=6.9 <7]")
        if self.options.app:
            self.requires("cli11/[>=2.1 <3]")

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part, name in PARTS.items():
            toolchain.cache_variables[f"POLYHEAD_BUILD_{name}"] = bool(self.options.get_safe(part))
        for name in ("TESTS", "EXAMPLES"):
            toolchain.cache_variables[f"POLYHEAD_BUILD_{name}"] = False
        toolchain.cache_variables |= {
            "POLYHEAD_INSTRUCTION_SETS": str(self.options.instruction_sets),
            "POLYHEAD_NPZ": False,
            "POLYHEAD_IMAGES": False,
            "POLYHEAD_WARNINGS_AS_ERRORS": False,  # a user's compiler may warn where the tested compilers do not
        }
        toolchain.generate()
        CMakeDeps(self).generate()
        PkgConfigDeps(self).generate()  # polyhead's build finds utf8proc and oniguruma through pkg-config

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=str(Path(self.package_folder, "licenses")))
        CMake(self).install()
        rmdir(self, str(Path(self.package_folder, "lib", "pkgconfig")))  # Conan generates .pc files itself

    def package_info(self):
        # The CMake package that polyhead installs: targets polyhead::polyhead, polyhead::io, ...
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/polyhead"]
        self.cpp_info.libs = [f"polyhead_{part}" for part in ("viewer", "models", "io", "distributed") if self.options.get_safe(part)] + ["polyhead"]
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread", "m"]
