#!/bin/bash
# lock.sh BIN: writes requirements/*.txt, every version pinned with its hashes, from the ranges in pyproject.toml.
set -eu
bin=$1
compile() { "$bin/uv" pip compile -q --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-package pip "$@"; }
printf '%s\n' 'setuptools>=77,<90' 'cython>=3.1,<3.3' >requirements/build.in
compile pyproject.toml --extra daemon --group demo requirements/build.in --output-file requirements/demo.txt
compile pyproject.toml --extra daemon --group dev requirements/build.in --constraint requirements/demo.txt --output-file requirements/test.txt
compile pyproject.toml --extra daemon --constraint requirements/demo.txt --output-file requirements/daemon.txt
# What a host of the pipeline has; and, on top of that and of test.txt, what its tests and the check of its types want.
compile pyproject.toml --extra daemon --extra pipeline --constraint requirements/test.txt --output-file requirements/pipeline.txt
compile --group pipeline-dev --constraint requirements/test.txt --constraint requirements/pipeline.txt \
  --output-file requirements/pipeline-test.txt
# Delta's JVM connector has no release for the newest Spark: what writes tables by it is tested under the Spark it is made for.
printf '%s\n' 'pyspark>=4.2,<4.2.1' >requirements/jvm.in
# Of all else it has what the pipeline has.
same=$(mktemp)
trap 'rm -f "$same"' EXIT
grep -E '^[a-z0-9._-]+==' requirements/pipeline.txt | sed 's/ .*//' | grep -v '^pyspark==' >"$same"
compile pyproject.toml --extra daemon --extra pipeline --group dev requirements/build.in requirements/jvm.in \
  --constraint requirements/test.txt --constraint "$same" --output-file requirements/jvm.txt
