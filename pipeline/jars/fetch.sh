#!/bin/sh
# Puts the jars of the pipeline into build/jars (Spark's Kafka connector) and build/jars-delta (Delta's JVM connector) by Maven, once.
#
#   pipeline/jars/fetch.sh                         the connector
#   pipeline/jars/fetch.sh kafka delta             both
#   pipeline/jars/fetch.sh kafka -Dconnector.version=4.3.0     another version; the properties are in the poms
#
# PENSTOCK_BUILD names another folder than `build`. What is there from the same pom and properties is left alone. A fetch that is
# interrupted leaves only a folder with the name .fetching-*: the jars appear in one rename, when they are whole.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
build=${PENSTOCK_BUILD:-$(cd "$here/../.." && pwd)/build}

kinds=""
properties=""
for word; do
    case $word in
        kafka | delta) kinds="$kinds $word" ;;
        -D*) properties="$properties $word" ;;
        *) echo "fetch.sh: kafka, delta or -Dname=value, not $word" >&2; exit 2 ;;
    esac
done
kinds=${kinds:-kafka}

command -v mvn >/dev/null || { echo "fetch.sh: Maven is missing: apt-get install maven openjdk-17-jdk-headless" >&2; exit 1; }
mkdir -p "$build"

for kind in $kinds; do
    case $kind in
        kafka) pom=$here/pom.xml target=$build/jars ;;
        delta) pom=$here/delta/pom.xml target=$build/jars-delta ;;
    esac
    # Changed versions are fetched anew: the folder says what it was made from.
    wanted=$({ cat "$pom"; echo "$properties"; } | cksum)
    [ "$(cat "$target/.made-from" 2>/dev/null || true)" != "$wanted" ] || continue
    fetching=$(mktemp -d "$build/.fetching-XXXXXX")
    trap 'rm -rf "$fetching"' EXIT
    trap 'exit 1' INT TERM
    echo "fetching the jars of $pom$properties" >&2
    cp "$pom" "$fetching/pom.xml"
    # shellcheck disable=SC2086  # properties are words
    mvn -q -B -Dstyle.color=never -f "$fetching/pom.xml" $properties dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$fetching/jars" || {
        echo "fetch.sh: a version of $pom did not resolve; -Dname=value chooses another" >&2
        exit 1
    }
    ls "$fetching"/jars/*.jar >/dev/null
    echo "$wanted" >"$fetching/jars/.made-from"
    [ ! -d "$target" ] || mv -T "$target" "$fetching/old"
    # -T: another fetch that was quicker makes this fail instead of putting one folder into the other.
    mv -T "$fetching/jars" "$target" 2>/dev/null || [ -d "$target" ]
    rm -rf "$fetching"
    trap - EXIT INT TERM
done
