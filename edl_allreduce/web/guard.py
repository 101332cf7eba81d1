"""Who may see a job's page and command the job through it. Pure: what a request says in, a refusal out.

The page's token is made of the job's token and does not give that away. A browser keeps it for one origin,
and sends it in a header that no other site can make it send. No cookie holds it: the cookies of a host are
shown to every port of it. So neither a page of another site nor another user of this machine can read or
command anything.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

OPEN: Final = frozenset({"/metrics", "/healthz", "/readyz"})
"""For programs that watch the job: figures and a word, without the token and under any name of the host."""

HEADERS: Final[Mapping[str, str]] = {
    # Nothing from elsewhere, nothing inline, no frame around it: text from outside stays text.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def page_token(job_token: str) -> str:
    """Whoever may ask the job's master can make it; nobody can go back from it to the job's token."""
    return hmac.new(job_token.encode(), b"page", hashlib.sha256).hexdigest()[:32]


def page_url(address: str, token: str) -> str:
    """What follows # is for the browser only: it is in no request, and so in no log of a server."""
    return f"http://{address}/#token={token}"


def strange_host(host: str, own_names: frozenset[str]) -> bool:
    """Whether a browser came here under a name that is not ours, as by a domain that changed its address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    if name in own_names or name == "localhost":
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of another site is behind this."""
    if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("Host", "")


def knows(token: str, headers: Mapping[str, str]) -> bool:
    """Whether the token is in the header where only a page of our own can put it."""
    given = headers.get("Authorization", "").encode("utf-8", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())
