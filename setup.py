"""The compiled part of pyomid: every `.pyx` file below src becomes the extension module of its name (decision 0112)."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NEEDED = (
    "pyomid is compiled when it is installed: install a C compiler and Python's headers"
    " (Debian and Ubuntu: apt install gcc libc6-dev python3-dev; macOS: xcode-select --install)"
)
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}
"""Indices are not checked: each module checks the lengths that it goes by, and the tests run it between guard pages."""
SHARED = "pyomid.native.memoryviews"
"""What Cython would otherwise put into every module; it writes this one's source itself."""
COMPILER_ARGUMENTS = ["-O3", "-fwrapv", "-g0"]


def extensions() -> list[Extension]:
    sources = {".".join(source.with_suffix("").parts[1:]): str(source) for source in sorted(Path("src").rglob("*.pyx"))}
    sources[SHARED] = f"{SHARED.replace('.', '/')}.c"
    return [Extension(name, [source], extra_compile_args=COMPILER_ARGUMENTS) for name, source in sources.items()]


class BuildOnAllCores(build_ext):
    """Cython and the C compiler, a module on each core."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        from Cython.Build import cythonize

        folder = f"build/cython-{sys.implementation.cache_tag}"  # two Pythons may build from one checkout at once
        made = cythonize(
            list(self.extensions),
            build_dir=folder,
            nthreads=self.parallel,
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=SHARED,
            quiet=True,
        )
        for extension, compiled in zip(self.extensions, made, strict=True):
            extension.sources = compiled.sources
        super().run()

    def build_extensions(self) -> None:
        headers = Path(sysconfig.get_path("include")) / "Python.h"
        if shutil.which(self.compiler.compiler[0]) is None or not headers.exists():
            raise SystemExit(NEEDED)
        super().build_extensions()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOnAllCores})
