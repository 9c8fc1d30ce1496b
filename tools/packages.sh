#!/bin/bash
# packages.sh demo|core|pipeline|test: makes sure of the programs that do not come from PyPI. As root it installs Debian's packages;
# otherwise it says which to install. `demo` is a compiler and Python; `core` is that and what the test tools build against; `pipeline`
# is a compiler, Python, a JVM and Maven; `test` is everything.
set -eu
case $1 in
  demo) wanted="base" ;;
  core) wanted="base build" ;;
  pipeline) wanted="base java" ;;
  test) wanted="base build java systemd kerberos browser" ;;
  *) echo "packages.sh: demo, core, pipeline or test, not $1" >&2; exit 2 ;;
esac
python=$("$(dirname "$0")/python.sh")
missing=()

has() { command -v "$1" >/dev/null 2>&1; }
has gcc || missing+=(gcc libc6-dev)
has "$python" || missing+=(python3)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
"$python" - <<'PY' 2>/dev/null || missing+=(python3-dev)
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
PY
wants() { [[ " $wanted " = *" $1 "* ]]; }
if wants build; then
  has krb5-config || missing+=(libkrb5-dev)
  [ -e /usr/lib/x86_64-linux-gnu/libatomic.so.1 ] || [ -e /usr/lib/aarch64-linux-gnu/libatomic.so.1 ] || missing+=(libatomic1)
fi
if wants java; then
  has javac || missing+=(openjdk-17-jdk-headless)
  has mvn || missing+=(maven)
fi
if wants systemd; then
  has systemd-nspawn || missing+=(systemd-container)
  has systemctl || missing+=(systemd systemd-sysv)
  has dbus-daemon || missing+=(dbus)
  has ip || missing+=(iproute2)
  has pgrep || missing+=(procps)
fi
if wants kerberos; then
  has kinit || missing+=(krb5-user)
  # In /usr/sbin, which is not on everybody's path.
  [ -x /usr/sbin/krb5kdc ] || missing+=(krb5-kdc)
  [ -x /usr/sbin/kadmin.local ] || missing+=(krb5-admin-server)
  has openssl || missing+=(openssl)
fi
if wants browser; then
  has chromium || missing+=(chromium)
  has chromedriver || missing+=(chromium-driver)
  # Without any font a browser draws boxes.
  [ -d /usr/share/fonts/truetype/dejavu ] || missing+=(fonts-dejavu-core)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && has apt-get; then
  echo "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  exit 0
fi
echo "Missing Debian packages. Install them and run make again:" >&2
echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
exit 1
