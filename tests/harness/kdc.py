"""A Kerberos realm for tests: MIT's KDC in a folder of its own, on the loopback, with principals and their key tabs."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .ports import free_ports
from .processes import end, start_tied, tail, wait_until

REALM: Final = "PENSTOCK.TEST"
SYSTEM_PROGRAMS: Final = Path("/usr/sbin")
READY_S: Final = 20.0
COMMAND_S: Final = 60.0

CLIENT_SIDE: Final = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  default_ccache_name = FILE:{folder}/tickets
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""

KDC_SIDE: Final = """\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
    max_life = 1h
  }}
[logging]
  kdc = FILE:{folder}/kdc.log
"""


class Kdc:
    """A running KDC. Use it in a `with`. `environment` is what a process needs to find it."""

    def __init__(self, folder: Path | None = None) -> None:
        """Make the realm's data base; nothing runs yet. Raise CalledProcessError, FileNotFoundError without MIT Kerberos."""
        self.folder = folder or Path(tempfile.mkdtemp(prefix="kdc-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = self.folder / "out.log"
        self.config_path = self.folder / "krb5.conf"
        profile = self.folder / "kdc.conf"
        for path, text in ((self.config_path, CLIENT_SIDE), (profile, KDC_SIDE)):
            _ = path.write_text(text.format(realm=REALM, folder=self.folder, port=self._port))
        self.environment = {"KRB5_CONFIG": str(self.config_path)}
        self._own_environment = {**os.environ, **self.environment, "KRB5_KDC_PROFILE": str(profile)}
        self._call("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def start(self) -> None:
        """Start it and wait until it takes connections. Raise TooLateError."""
        with self._log_path.open("ab") as log:
            self._process = start_tied(
                [str(SYSTEM_PROGRAMS / "krb5kdc"), "-n", "-r", REALM],
                env=self._own_environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        _ = wait_until(self._listens, seconds=READY_S, what=f"the KDC listens: {tail(self._log_path)}")

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def add(self, name: str) -> Path:
        """Make the principal `name`@REALM with a random key, and return its key tab."""
        keytab = self.folder / f"{name.replace('/', '.')}.keytab"
        self._admin(f"addprinc -randkey {name}", f"ktadd -k {keytab} -norandkey {name}")
        return keytab

    def forget(self, name: str) -> None:
        """Take the principal away; its key tab stays."""
        self._admin(f"delprinc -force {name}")

    def change_key(self, name: str) -> None:
        """Give the principal another key, which its key tab does not have."""
        self._admin(f"cpw -randkey {name}")

    def _admin(self, *queries: str) -> None:
        for query in queries:
            self._call("kadmin.local", "-r", REALM, "-q", query)

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(SYSTEM_PROGRAMS / program), *arguments],
            env=self._own_environment,
            check=True,
            timeout=COMMAND_S,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        # kadmin.local exits with 0 whatever became of its query.
        complaints: Sequence[bytes] = [line for line in done.stderr.splitlines() if b"while" in line]
        assert not complaints, f"{program} {arguments}: {complaints}"

    def close(self) -> None:
        """Stop it. The folder is its maker's."""
        if self._process is not None:
            _ = end(self._process)

    def __enter__(self) -> Self:
        """For `with`; nothing is started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop it."""
        self.close()
