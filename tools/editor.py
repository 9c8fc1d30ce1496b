"""Writes `pyrightconfig.json`, with which editors resolve `penstock.…` to the real files: `make editor`.

The import `penstock.wire` is the folder `wire/` of this clone. Only a folder called `penstock` has that path, so the clone must be
called so, and the folder around it is where imports begin. `.typing/` has links, a second path to each file: enough for checks,
but an editor that looks for references would take each file for two.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
UNCHECKED: Final = ["tests", "bench", "demo"]


def main() -> None:
    """Write the file; it holds for editors, while `make types` names pyproject.toml."""
    if ROOT.name != "penstock":
        sys.exit(f"rename {ROOT} to {ROOT.with_name('penstock')}: imports begin with the name of this folder")
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]["include"]
    settings = {
        "extends": "pyproject.toml",
        "include": packages + [folder for folder in UNCHECKED if folder not in packages],
        "strict": packages,
        "typeCheckingMode": "standard",
        "extraPaths": [".."],
        "executionEnvironments": [{"root": ".", "extraPaths": [".."]}],
    }
    _ = (ROOT / "pyrightconfig.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
