"""Serves the page and the state of a run over HTTP: three files and one JSON object, to be read only.

The page needs no other file and no network. Other websites cannot read it: a request must name this machine in `Host`
(a rebound DNS name does not), nothing allows another origin, and beyond the machine itself a token is asked for.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import finite_only

COOKIE = "pbt_rl_token_"
"""The port follows: browsers send the cookies of a host to all its ports, and each server has a token of its own."""
REQUEST_SECONDS = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PAGES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """A server for one run. state: returns what is shown, raises ConfigError if the run cannot be read."""

    daemon_threads = True

    def __init__(self, host: str, port: int, state: Callable[[], dict[str, Any]]) -> None:
        """Port 0: any free one. Raises OSError."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.state = state
        self.token = "" if host in LOOPBACK else secrets.token_urlsafe(18)
        """Asked for on any other interface than the machine's own."""
        self.host = host
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """What to open in a browser."""
        anywhere = self.host in ("0.0.0.0", "::")  # noqa: S104 - the user's own choice
        name = socket.gethostname() if anywhere else self.host
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.server_port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds the token."""
        return f"{COOKIE}{self.server_port}"

    def knows(self, host: str) -> bool:
        """Return whether a `Host` header names this machine: then the page was not reached by a rebound name."""
        name = urlsplit(f"//{host}").hostname or ""
        if not self.token:
            return name in LOOPBACK
        own = (self.host.lower(), socket.gethostname().lower(), *LOOPBACK)
        return name in own or _is_address(name) or name == self._full_name

    @cached_property
    def _full_name(self) -> str:
        return socket.getfqdn().lower()  # the resolver may take seconds

    def handle_error(self, *_: Any) -> None:
        """Say nothing about a browser that went away."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = REQUEST_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pbt_rl", ""

    def do_GET(self) -> None:
        """Answer with a file of the page or with the state."""
        try:
            known = self.server.knows(self.headers.get("Host", ""))
        except ValueError:
            known = False
        asked = urlsplit(self.path)
        if not known:
            self._answer(403, "this name is not the name of this machine", "text/plain")
        elif not self._may_read(parse_qs(asked.query)):
            self._answer(403, "open the address that pbt-rl watch printed, with its token", "text/plain")
        elif asked.path in PAGES:
            name, kind = PAGES[asked.path]
            self._answer(200, files("pbt_rl.watch").joinpath(name).read_text(encoding="utf-8"), kind)
        elif asked.path == "/state.json":
            self._answer_state()
        else:
            self._answer(404, "there is nothing here", "text/plain")

    def _may_read(self, query: dict[str, list[str]]) -> bool:
        token = self.server.token
        if not token:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            cookie = None
        given = [*query.get("token", []), *([cookie.value] if cookie else [])]
        return any(hmac.compare_digest(one.encode(), token.encode()) for one in given)

    def _answer_state(self) -> None:
        try:
            text = json.dumps(finite_only(self.server.state()), allow_nan=False)
        except ConfigError as error:
            self._answer(503, json.dumps({"error": str(error)}), "application/json")
        else:
            self._answer(200, text, "application/json")

    def _answer(self, code: int, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.server.token and code == 200:
            cookie = f"{self.server.cookie}={self.server.token}"
            self.send_header("Set-Cookie", f"{cookie}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing per request."""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
