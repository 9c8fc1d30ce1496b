"""Settings files are UTF-8, whatever the locale says."""

import os
import subprocess
import sys
from pathlib import Path

LOAD = """
import sys
from pathlib import Path
from penstock.config.load import load
assert not sys.flags.utf8_mode
print(ascii(load(Path(sys.argv[1])).kafka.client_id))
"""


def test_a_settings_file_is_read_as_utf8_in_the_c_locale(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    _ = path.write_text('[kafka]\nbootstrap.servers = "b:1"\nclient.id = "zähler-ß"\n', encoding="utf-8")
    command = [sys.executable, "-c", LOAD, str(path)]
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, encoding="utf-8")
    assert (done.returncode, done.stdout.strip()) == (0, ascii("zähler-ß")), done.stderr
