"""Compiles the kernel; everything else about the package is in pyproject.toml."""

import shutil
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = (
    "kernel_msgpack",
    "kernel_columns",
    "kernel_slices",
    "kernel_records",
    "kernel_given",
    "kernel_chunks",
    "kernel_futures",
    "kernel_front",
    "kernel",
)
BUILD = Path("build/cython")


def declarations() -> str:
    """The kernel's declarations under the names the modules have in the package; here the folders stand at the top level."""
    folder = BUILD / "include" / "penstock" / "producer"
    folder.mkdir(parents=True, exist_ok=True)
    for package in (folder, folder.parent):
        (package / "__init__.pxd").touch()
    for name in KERNEL:
        source = Path("producer", f"{name}.pxd")
        if source.exists():
            _ = shutil.copy2(source, folder)
    return str(folder.parent.parent)


setup(
    ext_modules=cythonize(
        [
            Extension(f"penstock.producer.{name}", [f"producer/{name}.py"], extra_compile_args=["-O3"])
            for name in KERNEL
        ],
        include_path=[declarations()],
        language_level=3,
        build_dir=str(BUILD),
    ),
)
