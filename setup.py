"""Builds libspate.so beside the Python package: `pip install .` needs what the C++ build needs (CONTRIBUTING.md).

With SPATE_LIBRARY in the environment that library is taken instead of building one.
"""

import os
import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = pathlib.Path(__file__).resolve().parent


def make_library() -> pathlib.Path:
    if "SPATE_LIBRARY" in os.environ:
        return pathlib.Path(os.environ["SPATE_LIBRARY"])
    build = ROOT / "build" / "shared"
    subprocess.run(["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DSPATE_SHARED=ON",
                    "-DSPATE_TESTS=OFF"], check=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "spate_shared"], check=True)
    return build / "libspate.so"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib) / "spate" / "libspate.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(make_library(), target)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):  # the wheel is of one platform
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=BinaryDistribution)
