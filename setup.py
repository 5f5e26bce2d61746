"""Build steps beyond copying Python files: web interface and native kernels. Metadata is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_native
import build_ui


class BuildPy(build_py):
    def run(self) -> None:
        if problem := build_ui.build():
            self.warn(f"the web interface was not built (/ui reports it): {problem}")
        super().run()


setup(
    ext_modules=[build_native.EXTENSION],
    cmdclass={"build_py": BuildPy, "build_ext": build_native.BuildNative, "bdist_wheel": build_native.Wheel},
    setup_requires=[*build_ui.requirements(), *build_native.requirements()],
)
