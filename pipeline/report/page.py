"""The report of an audit: one self-contained HTML file that needs neither network nor other files.

The template escapes all outside text (topics, hosts, messages), or passes it as JSON in a data block. The page's
Content-Security-Policy allows only its own style sheet and script, by their hashes.
"""

import base64
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from . import charts
from .data import ReportData, Status
from .view import BAR_WIDTH, ReportLimits, view
from .wording import moment, number, seconds, visible

TEMPLATES: Final = Path(__file__).parent / "templates"
STATUS_WORD: Final = {
    Status.COMPLETE: "Complete",
    Status.COUNTED: "Counted",
    Status.LATE: "Late",
    Status.UNKNOWN: "Unknown",
    Status.DUPLICATED: "Twice",
    Status.LOST: "Lost",
}


def render(data: ReportData, limits: ReportLimits | None = None) -> str:
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    shown = view(data, limits or ReportLimits())
    template = _environment().get_template("report.html")
    return template.render(
        data=data,
        view=shown,
        charts=charts,
        bar_width=BAR_WIDTH,
        status_words=STATUS_WORD,
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        style_hash=_hash(style),
        script_hash=_hash(script),
        payload=_data_block(shown.payload),
    )


def write(path: Path, text: str) -> None:
    """Write a page, or the metrics file, atomically. Creates the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    made = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            _ = file.write(text)
        # Readable for everyone with access to the folder.
        made.chmod(0o644)
        _ = made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_show_invisible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "moment": moment, "seconds": seconds, "code": _code}
    return environment


def _show_invisible(value: object) -> object:
    """Escape invisible characters in every text that the template puts on the page, except our own markup."""
    return visible(value) if type(value) is str else value


def _code(text: str) -> Markup:
    """Escape the text, and mark up the parts between backticks as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(visible(part)) if place % 2 else escape(visible(part))
        for place, part in enumerate(parts)
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data_block(value: object) -> Markup:
    """Encode JSON so that it cannot end its script element, whatever it contains."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - just escaped
