"""Read-only HTTP server of the watch page: three files and one JSON object.

The page needs no other file and no network. There is no authentication: anyone who reaches the interface can read it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import finite_only

REQUEST_SECONDS = 10.0
PAGES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}


class Server(ThreadingHTTPServer):
    """HTTP server for one run. state: returns the content of the page; raises ConfigError if the run is unreadable."""

    daemon_threads = True

    def __init__(self, host: str, port: int, state: Callable[[], dict[str, Any]]) -> None:
        """Port 0: any free port. Raises OSError."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.state = state
        self.host = host
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind without a host name lookup, because it may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    @property
    def url(self) -> str:
        """URL to open in a browser."""
        anywhere = self.host in ("0.0.0.0", "::")  # noqa: S104 - chosen by the user
        name = socket.gethostname() if anywhere else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_port}/"

    def handle_error(self, *_: Any) -> None:
        """Ignore browsers that disconnect."""


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    server: Server
    timeout = REQUEST_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pbt_rl", ""

    def do_GET(self) -> None:
        """Respond with a file of the page or with the state."""
        path = urlsplit(self.path).path
        if path in PAGES:
            name, kind = PAGES[path]
            self._answer(200, files("pbt_rl.display.watch").joinpath(name).read_text(encoding="utf-8"), kind)
        elif path == "/state.json":
            try:
                code, text = 200, json.dumps(finite_only(self.server.state()), allow_nan=False)
            except ConfigError as error:
                code, text = 503, json.dumps({"error": str(error)})
            self._answer(code, text, "application/json")
        else:
            self._answer(404, "not found", "text/plain")

    def _answer(self, code: int, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing per request."""
