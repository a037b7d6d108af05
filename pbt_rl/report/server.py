"""Read-only HTTP server of the watch page and its figures.

The page loads no files from other servers. There is no authentication: everyone who reaches the port can read the page.
"""

from __future__ import annotations

import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pbt_rl.report.live import Live

REQUEST_SECONDS = 10.0
UNWATCHED_SECONDS = 10.0
"""The page is not renewed if the last request of a browser is older than this."""


class Server(ThreadingHTTPServer):
    """HTTP server for one run. The thread of `serve_forever` renews the page."""

    daemon_threads = True

    def __init__(self, host: str, port: int, live: Live) -> None:
        """Bind to a port. port: 0 for any free port. Raises OSError if the port cannot be used."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.live, self.host = live, host
        self.asked = time.monotonic()
        """`time.monotonic()` of the last request, or of the start."""
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind without a host name lookup, because a lookup may take seconds."""
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

    def service_actions(self) -> None:
        """Renew the page while a browser shows it."""
        if time.monotonic() - self.asked < UNWATCHED_SECONDS:
            self.live.step()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore OSErrors, such as of a browser that disconnects. Print all other errors."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    server: Server
    timeout = REQUEST_SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pbt_rl", ""

    def do_GET(self) -> None:
        """Respond with the page or a figure. Status 503: the page cannot be built. Status 404: no such figure."""
        self.server.asked = time.monotonic()
        path, page = urlsplit(self.path).path, self.server.live.page
        drawn = self.server.live.pictures.get(path.removeprefix("/").removesuffix(".png"))
        if path == "/" and isinstance(page, str):
            self._answer(200, page.encode(), "text/html; charset=utf-8")
        elif path == "/":
            self._answer(503, str(page).encode(), "text/plain; charset=utf-8")
        elif isinstance(drawn, bytes) and path.endswith(".png"):
            self._answer(200, drawn, "image/png")
        else:
            self._answer(404, b"not found", "text/plain; charset=utf-8")

    def _answer(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Do nothing, because requests are not logged."""
