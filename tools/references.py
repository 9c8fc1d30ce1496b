"""Asks pyright's language server, as an editor does, for all references of central classes: their tests must be among them.

    make editor && .venv/bin/python tools/references.py

Some minutes on a small machine. The clone must be called `penstock` (CONTRIBUTING.md, Editors).
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

ROOT: Final = Path(__file__).resolve().parents[1]
SERVER: Final = (sys.executable, "-m", "pyright.langserver", "--stdio")


FILES_FOUND_S: Final = 120.0


class Asked(NamedTuple):
    """A class, the file that defines it, and a test that uses it."""

    name: str
    file: str
    test: str


ASKED: Final = (
    Asked("ProducerBatch", "producer/accumulator/batch.py", "tests/core/test_accumulator.py"),
    Asked("JournalSlot", "wire/journal.py", "tests/model/test_leases.py"),
    Asked("SpoolIdentity", "daemon/spool/identity.py", "tests/process/test_spool_directory.py"),
)


class LanguageServer:
    """pyright's language server for this tree."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(SERVER, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        folder = {"uri": ROOT.as_uri(), "name": ROOT.name}
        _ = self.ask("initialize", processId=None, rootUri=ROOT.as_uri(), workspaceFolders=[folder], capabilities={})
        self._send({"method": "initialized", "params": {}})

    def references(self, asked: Asked) -> set[str]:
        """The files that mention the class, by the paths that the server gives."""
        path = ROOT / asked.file
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        line = next(place for place, content in enumerate(lines) if content.startswith(f"class {asked.name}"))
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        found = self.ask(
            "textDocument/references",
            textDocument={"uri": path.as_uri()},
            position={"line": line, "character": len("class ")},
            context={"includeDeclaration": True},
        )
        places = cast("list[dict[str, Any]]", found or [])
        return {one["uri"].removeprefix(ROOT.as_uri() + "/") for one in places}

    def ask(self, method: str, **params: object) -> object:
        """Send a request and return its result."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._number and "method" not in message:
                assert "error" not in message, message["error"]
                return message.get("result")
            if "method" in message and "id" in message:
                items = (
                    message.get("params", {}).get("items", ()) if message["method"] == "workspace/configuration" else ()
                )
                self._send({"id": message["id"], "result": [None for _ in items] or None})

    def end(self) -> None:
        """Stop the server."""
        self._process.kill()
        _ = self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        _ = self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        assert size, "the language server ended"
        return json.loads(self._process.stdout.read(size))


def main() -> int:
    """Print what is missing; 1 if something is."""
    server = LanguageServer()
    missing = 0
    try:
        for asked in ASKED:
            found = server.references(asked)
            # The server answers for the open file alone until it has found the others.
            until = time.monotonic() + FILES_FOUND_S
            while len(found) < 2 and time.monotonic() < until:
                found = server.references(asked)
            tests = sorted(file for file in found if file.startswith(asked.test))
            linked = sorted(file for file in found if file.startswith(".typing/"))
            print(f"{asked.name}: {len(found)} files, {len(tests)} of {asked.test}, {len(linked)} by a second path")
            missing += not tests or bool(linked)
    finally:
        server.end()
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
