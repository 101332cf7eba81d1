"""The page's own files, put into one HTML file that needs nothing else and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Final

from edl_allreduce.web.site import STATIC

_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>elasticdl report</title>
<link rel="icon" href="data:,">
<style>{library_style}</style>
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>The report needs JavaScript. elasticdl report --format=md says the same in words.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script type="module">{program}</script>
</body>
</html>
"""


def program(entry: str, folder: Path = STATIC / "js") -> str:
    """A module and all that it imports as one, each after what it needs. Their names must differ."""
    done: dict[str, str] = {}

    def take(name: str) -> None:
        if name in done:
            return
        done[name] = ""  # those who import each other come once
        text = (folder / name).read_text()
        for needed in _IMPORT.findall(text):
            take(needed)
        del done[name]  # it comes after what it needs
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    take(entry)
    return "\n".join(done.values())


def report_page(data: bytes) -> str:
    """The report of a job, from its whole `Update` as JSON."""
    library_style = (STATIC / "vendor" / "uPlot.min.css").read_text()
    style = (STATIC / "style.css").read_text()
    library = (STATIC / "vendor" / "uPlot.iife.min.js").read_text()
    script = program("report.js")
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(library)} {_hash(script)}; "
        f"style-src {_hash(library_style)} {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    # No text of the data can end the element that it stands in.
    text = data.decode().replace("<", "\\u003c")
    return _PAGE.format(
        policy=policy, library_style=library_style, style=style, data=text, library=library, program=script
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
