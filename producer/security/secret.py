"""A secret in a file that may be replaced at run time: each connection uses the current content."""

import os
from pathlib import Path
from typing import Final

from ...api.errors import AuthenticationError
from ...config.secret_files import SecretError, read_password
from ...runtime import logs

_FileFingerprint = tuple[int, int, int, int, int]


class SecretText:
    """A secret text in a file. For use by one thread."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._text: str | None = None
        self._fingerprint: _FileFingerprint | None = None
        self._last_error = ""
        self._log = logs.get()

    def current(self) -> str:
        """The text. If the file is now unusable, the text read before.

        Raises:
            AuthenticationError: the file is unusable and was never read before.
        """
        stamp = _file_fingerprint(self._path)
        if self._text is not None and stamp is not None and stamp == self._fingerprint:
            return self._text
        try:
            text = read_password(self._path)
        except SecretError as error:
            if self._text is None:
                raise AuthenticationError(str(error)) from error
            if self._last_error != str(error):
                self._last_error = str(error)
                self._log.warning("secret_reload_failed", reason=self._last_error)
            return self._text
        # The fingerprint was taken before reading: the next call then sees a change made in between.
        self._text, self._fingerprint, self._last_error = text, stamp, ""
        return text


def _file_fingerprint(path: Path) -> _FileFingerprint | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - one call, no object
    except OSError:
        return None
    # Includes ctime, because the file's permissions decide whether it is accepted.
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
