#!/bin/sh
# Puts the jars of Apache Kafka into build/kafka/<version>/libs by Maven, once.
#
#   tests/java/fetch.sh                  both versions the tests use
#   tests/java/fetch.sh 4.3.1            one version
#
# A fetch that is interrupted leaves only a folder with the name .fetching-*: `libs` appears in one rename, when it is whole.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=${PENSTOCK_BUILD:-$(cd "$here/../.." && pwd)/build}/kafka
[ $# -gt 0 ] || set -- 4.3.1 3.9.2

command -v mvn >/dev/null || { echo "fetch.sh: Maven is missing: apt-get install maven openjdk-17-jdk-headless" >&2; exit 1; }

for version; do
    target=$build/$version
    [ ! -d "$target/libs" ] || continue
    mkdir -p "$target"
    fetching=$(mktemp -d "$target/.fetching-XXXXXX")
    trap 'rm -rf "$fetching"' EXIT
    trap 'exit 1' INT TERM
    echo "fetching Apache Kafka $version" >&2
    # In a copy of the pom's folder, so that two versions can be fetched at once.
    cp "$here/pom.xml" "$fetching/pom.xml"
    mvn -q -B -Dstyle.color=never -f "$fetching/pom.xml" -Dkafka.version="$version" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$fetching/libs"
    ls "$fetching/libs/kafka_2.13-$version.jar" "$fetching/libs/kafka-tools-$version.jar" >/dev/null
    # -T: another fetch that was quicker makes this fail instead of putting one folder into the other.
    mv -T "$fetching/libs" "$target/libs" 2>/dev/null || [ -d "$target/libs" ]
    rm -rf "$fetching"
    trap - EXIT INT TERM
done
