# What the compiled kernel takes from C. The uncompiled one copies by slices.
from libc.string cimport memcpy
