"""The page around the data: report.html with styles, scripts and data inside.

report.html   <- report.css, lanes.js + report.js, data as JSON
policy        only these very scripts and styles run: their hashes stand in the page
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

_SCRIPTS = ("lanes.js", "report.js")


def render(data: Mapping[str, Any]) -> str:
    """The HTML text.

    Parameters
    ----------
    data : mapping
        What :func:`~disco_fuse.report.data.report_data` returns.
    """
    style = _text("report.css")
    script = "\n".join(_text(name) for name in _SCRIPTS)
    return Template(_text("report.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_embedded(data),
    )


def _text(name: str) -> str:
    return (resources.files("disco_fuse.report") / name).read_text(encoding="utf-8")


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in: no '<' is left (HTML standard, 4.12.1.3)."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    """A source expression of a content security policy (CSP Level 3, 2.3.1)."""
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()
