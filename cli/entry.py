"""Entry point of the command `penstock`. In an installation for clients only, the error names what to install."""

import sys
from typing import NoReturn

from ..runtime.process import ExitCode


def main() -> NoReturn:
    """Run the command line, or say what to install."""
    try:
        from .main import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        sys.stderr.write(
            f"penstock: the command line needs {error.name}, which is not installed: this installation is for clients only. "
            "Install the daemon's parts too: pip install 'penstock[daemon]'\n"
        )
        sys.exit(ExitCode.FAILED)
    run()
