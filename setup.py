"""Puts the program and libspate.so into the Python package: `pip install .` needs what the C++ build needs (CONTRIBUTING.md).

With SPATE_BUILD_DIR in the environment that build folder is taken (the release preset's) instead of building.
"""

import os
import pathlib
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent


def build_folder() -> pathlib.Path:
    if "SPATE_BUILD_DIR" in os.environ:
        return pathlib.Path(os.environ["SPATE_BUILD_DIR"]).resolve()
    build = ROOT / "build" / "wheel"
    subprocess.run(["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DSPATE_SHARED=ON",
                    "-DSPATE_TESTS=OFF"], check=True)
    subprocess.run(["cmake", "--build", str(build), "--target", "spate", "spate_shared"], check=True)
    return build


class BuildWithNative(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib).resolve() / "spate" / "_native"
        subprocess.run(["cmake", "--install", str(build_folder()), "--component", "native", "--strip", "--prefix", str(target)],
                       check=True, stdout=subprocess.DEVNULL)
        for link in (target / "lib" / "spate").iterdir():  # a wheel has no links: a library only under the name that is asked for
            if link.is_symlink():
                link.resolve().rename(link)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):  # the wheel is of one platform
        return True


class WheelOfOnePlatform(bdist_wheel):
    def get_tag(self):  # any Python: the library is loaded by ctypes; cmake/SpatePackage.cmake says why 2.35
        return "py3", "none", f"manylinux_2_35_{os.uname().machine}"


setup(cmdclass={"build_py": BuildWithNative, "bdist_wheel": WheelOfOnePlatform}, distclass=BinaryDistribution)
