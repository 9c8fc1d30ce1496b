"""Compiles the kernel; everything else about the package is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = ("kernel", "kernel_records")

setup(
    ext_modules=cythonize(
        [
            Extension(f"penstock.producer.{name}", [f"producer/{name}.py"], extra_compile_args=["-O3"])
            for name in KERNEL
        ],
        language_level=3,
        build_dir="build/cython",
    ),
)
