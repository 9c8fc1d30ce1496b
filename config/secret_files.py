"""Reads the secrets, certificates and keys that settings name. Each problem is a sentence that names the file.

A secret must belong to root or to the process's user (to any user if the process runs as root). No other user may write
it, and others may not read it. The group may read it if root owns the file: Kubernetes (`fsGroup`) and systemd's
credentials pass secrets to a non-root user in this way.
"""

import importlib.util
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .security import PASSWORD_MECHANISMS, SecuritySettings

NO_GSSAPI: Final = "the package gssapi is not installed: pip install 'penstock[gssapi]'"
_BYTES_MAX: Final = 1 << 20
"""Maximum size of one file; long certificate chains and keytabs are far smaller."""


class SecretError(Exception):
    """A file cannot be used. The message names the file and the remedy, and never contains the file's contents."""


def read_secret(path: Path) -> bytes:
    """Return the contents of a file that only this process's user may read.

    Raises:
        SecretError: it is missing, unreadable, too long or not a regular file, or others may read or write it.
    """
    return _read(path, secret=True)


def read_password(path: Path) -> str:
    """Return a password, token or client secret, without the line end after it.

    Raises:
        SecretError: as `read_secret`; also if the file is empty or not UTF-8.
    """
    try:
        text = read_secret(path).decode()
    except UnicodeDecodeError:
        raise SecretError(f"{path} is not UTF-8 text") from None
    if text.endswith("\n"):
        text = text[:-1].removesuffix("\r")
    if not text:
        raise SecretError(f"{path} is empty: a secret is wanted in it")
    return text


def read_certificates(path: Path) -> bytes:
    """Return the contents of a file that all users may read but not write: its writers decide which peers are trusted.

    Raises:
        SecretError: it is missing, unreadable, too long or not a regular file, or all users may write it.
    """
    return _read(path, secret=False)


def _read(path: Path, *, secret: bool) -> bytes:
    try:
        # A pipe would not open until somebody writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretError(f"{path} cannot be read by uid {os.geteuid()}: {error.strerror}") from error
    try:
        # Before it becomes a file of Python's, which cannot hold a folder.
        problem = _problem(path, os.fstat(descriptor), secret=secret)
        if problem:
            raise SecretError(problem)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_BYTES_MAX)
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _problem(path: Path, status: os.stat_result, *, secret: bool) -> str:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is no file"
    if status.st_size > _BYTES_MAX:
        return f"{path} has {status.st_size:,} bytes: at most {_BYTES_MAX:,} are read"
    if not secret:
        if mode & stat.S_IWOTH:
            return f"{path} has mode {mode:04o}, so everybody may write what is believed: chmod o-w {path}"
        return ""
    # Root sees files of the daemon's user when it checks, and of the host's users from inside a container.
    if os.geteuid() != 0 and status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to uid {status.st_uid}: a secret must be root's or uid {os.geteuid()}'s own"
    allowed = 0o740 if status.st_uid == 0 else 0o700
    if mode & ~allowed & 0o777:
        return f"{path} has mode {mode:04o}, so others may read or write the secret: chmod 0600 {path}"
    return ""


def file_problems(settings: SecuritySettings) -> list[str]:
    """Return the problems of the files and the package that these settings need, one sentence each."""
    problems: list[str] = []
    if settings.uses_sasl and settings.sasl_mechanism == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        problems.append(f"sasl.mechanism = GSSAPI: {NO_GSSAPI}")
    for name, path, kind in _files(settings):
        try:
            _ = {"text": read_password, "secret": read_secret, "certificates": read_certificates}[kind](path)
        except SecretError as error:
            problems.append(f"{name}: {error}")
    return problems


def _files(settings: SecuritySettings) -> Iterator[tuple[str, Path, str]]:
    named: list[tuple[str, Path | None, str]] = []
    if settings.uses_tls:
        apart = settings.ssl_key_location is not None
        named += [
            ("ssl.truststore.location", settings.ssl_truststore_location, "certificates"),
            ("ssl.keystore.location", settings.ssl_keystore_location, "certificates" if apart else "secret"),
            ("ssl.key.location", settings.ssl_key_location, "secret"),
            ("ssl.key.password.file", settings.ssl_key_password_file, "text"),
        ]
    if settings.uses_sasl and settings.sasl_mechanism in PASSWORD_MECHANISMS:
        named.append(("sasl.password.file", settings.sasl_password_file, "text"))
    if settings.uses_sasl and settings.sasl_mechanism == "GSSAPI":
        named.append(("sasl.kerberos.keytab", settings.sasl_kerberos_keytab, "secret"))
    if settings.uses_sasl and settings.sasl_mechanism == "OAUTHBEARER":
        named.append(("sasl.oauthbearer.token.endpoint.url", settings.token_file, "text"))
        if settings.token_file is None:
            named += [
                ("sasl.oauthbearer.client.secret.file", settings.sasl_oauthbearer_client_secret_file, "text"),
                ("sasl.oauthbearer.truststore.location", settings.sasl_oauthbearer_truststore_location, "certificates"),
            ]
    for name, path, kind in named:
        if path is not None:
            yield name, path, kind
