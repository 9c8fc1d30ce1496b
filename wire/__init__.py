"""Formats of data that crosses process boundaries. This package imports nothing else of ours and does no I/O."""
