"""Who may see the page: the machine itself, or whoever knows the token.

bound to a loopback address    only requests that name a loopback host: a page of somebody else
                               whose name was made to point to this machine (DNS rebinding)
                               names its own
with a token                   Authorization: Bearer TOKEN, or ?token=TOKEN once, which sets
                               the cookie that is asked for from then on
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")
ALLOWED_TOKENS = "16 to 200 letters, digits or -._~"


class Access:
    """Decides on requests.

    Parameters
    ----------
    host : str
        What the server is bound to.
    token : str, optional

    Raises
    ------
    ValueError
        If other machines could see the page without a token, the token is too simple, or there is
        no such host.
    """

    def __init__(self, host: str, token: str | None) -> None:
        self.is_local = all(ipaddress.ip_address(address).is_loopback for address in _all_of(host))
        if token is None and not self.is_local:
            raise ValueError(
                f"on {host!r} other machines see the page: this needs a token; without one "
                "allowed: 127.0.0.1, ::1, localhost"
            )
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError(f"the token has {len(token)} characters; allowed: {ALLOWED_TOKENS}")
        self.needs_token = token is not None
        self._token = (token or "").encode()
        # Not the token itself, but the same after a restart, so that open pages reconnect.
        self.cookie = hmac.new(self._token, b"disco-fuse dashboard", hashlib.sha256).hexdigest()

    def allows_host(self, header: str) -> bool:
        """Whether a request's Host header may be answered."""
        if not self.is_local:
            return True
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def is_token(self, given: str) -> bool:
        """In a time that does not depend on how much of it is right."""
        return hmac.compare_digest(given.encode(), self._token)

    def is_cookie(self, given: str) -> bool:
        """Likewise."""
        return hmac.compare_digest(given.encode(), self.cookie.encode())


def _all_of(host: str) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"no host {host!r}: {error}") from error
    return [str(address[0]).split("%")[0] for *_, address in found]
