"""Compiles the kernel; everything else about the package is in pyproject.toml."""

import shutil
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = (
    "msgpack",
    "columns",
    "slices",
    "records",
    "arguments",
    "chunks",
    "futures",
    "append",
    "frames",
)
BUILD = Path("build/cython")


def declarations() -> str:
    """The kernel's declarations under the names the modules have in the package; here the folders stand at the top level."""
    folder = BUILD / "include" / "penstock" / "producer" / "kernel"
    folder.mkdir(parents=True, exist_ok=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.pxd").touch()
    for name in KERNEL:
        source = Path("producer", "kernel", f"{name}.pxd")
        if source.exists():
            _ = shutil.copy2(source, folder)
    return str(BUILD / "include")


setup(
    ext_modules=cythonize(
        [
            Extension(f"penstock.producer.kernel.{name}", [f"producer/kernel/{name}.py"], extra_compile_args=["-O3"])
            for name in KERNEL
        ],
        include_path=[declarations()],
        language_level=3,
        build_dir=str(BUILD),
    ),
)
