#!/bin/sh
# Prints a Python of version 3.11 or later; the one in PATH first.
for candidate in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done
echo python3
