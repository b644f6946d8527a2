"""`gradmesh status --serve`: the status of a cluster as a page that refreshes, and as JSON."""

import base64
import dataclasses
import hashlib
import html
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import final
from urllib.parse import urlsplit

from gradmesh.protos.errors import MeshError
from gradmesh.protos.printable import printable
from gradmesh.sdk.cluster.status import ClusterStatus
from gradmesh.sdk.process.network import is_loopback, join, split
from gradmesh.sdk.process.setting import AddressInUse

# The page caches the status, so that many readers make few calls to the coordinator.
_KEPT_S = 0.5
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid #ddd}progress{width:100%;height:1rem}.warning{color:#a40}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}td,th{border-color:#444}}
"""
_HEAD = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gradmesh</title>
<meta http-equiv="refresh" content="2"><meta name="viewport" content="width=device-width">
<style>{_STYLE}</style></head><body><h1>gradmesh</h1>"""
_TAIL = '<p><a href="status.json">as JSON</a></p></body></html>'
_STYLE_SUM = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# The page needs its own style only: no script runs, nothing is loaded, no other page embeds it.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_SUM}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@final
class StatusPage:
    """Serves GET /, /status.json and /healthz until it is closed.

    Args:
        listen: Address to bind; port 0 takes a free one.
        fetch: Calls the coordinator; the page shows its errors.

    Raises:
        AddressInUse: The address cannot be bound.
    """

    def __init__(self, listen: str, fetch: Callable[[], ClusterStatus]) -> None:
        host, port = split(listen)
        self._fetch = fetch
        self._lock = threading.Lock()
        self._kept: tuple[float, ClusterStatus | MeshError] | None = None
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise AddressInUse(listen, "--serve", error.strerror or str(error)) from error
        self.address = join(host, self._server.server_port)

    def serve(self) -> None:
        """Answer until `close` is called by another thread, or the process is interrupted."""
        try:
            self._server.serve_forever(0.1)
        finally:
            self._server.server_close()

    def close(self) -> None:
        """Make `serve` return."""
        self._server.shutdown()

    def is_for(self, host: str) -> bool:
        """Return whether a request names this machine, where only this machine may read the page.

        A web site could otherwise give its own name this address, and read the page in a browser.
        """
        if not is_loopback(self.address):
            return True
        try:
            named = urlsplit(f"//{host}").hostname or ""
            return is_loopback(join(named, 0))
        except ValueError:
            return False

    def ask(self) -> ClusterStatus | MeshError:
        """Return the status, or the error; fetched at most twice a second."""
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > _KEPT_S:
                found: ClusterStatus | MeshError
                try:
                    found = self._fetch()
                except MeshError as error:
                    found = error
                self._kept = (time.monotonic(), found)
            return self._kept[1]


@final
class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], page: StatusPage) -> None:
        self.page = page
        super().__init__(address, _Handler)


@final
class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not self.server.page.is_for(self.headers.get("Host", "")):
            self._reply(HTTPStatus.MISDIRECTED_REQUEST, "ask for it by its address\n", "text/plain")
        elif path == "/healthz":
            self._reply(HTTPStatus.OK, "ok\n", "text/plain")
        elif path not in ("/", "/status.json"):
            self._reply(
                HTTPStatus.NOT_FOUND, "there is /, /status.json and /healthz\n", "text/plain"
            )
        else:
            found = self.server.page.ask()
            failed = isinstance(found, MeshError)
            status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
            if path == "/":
                self._reply(status, as_html(found), "text/html; charset=utf-8")
            else:
                self._reply(status, as_json(found), "application/json")

    def _reply(self, status: HTTPStatus, body: str, kind: str) -> None:
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the page refreshes every two seconds."""


def as_json(found: ClusterStatus | MeshError) -> str:
    """Return the cluster's status as `gradmesh status --json` does, or the error."""
    if isinstance(found, MeshError):
        return json.dumps({"error": str(found)}) + "\n"
    return json.dumps(dataclasses.asdict(found), indent=2) + "\n"


def as_html(found: ClusterStatus | MeshError) -> str:
    """Return the page."""
    if isinstance(found, MeshError):
        return f'{_HEAD}<p class="warning">{_safe(str(found))}</p>{_TAIL}'
    parts = [
        _HEAD,
        f"<p>version {_safe(found.version)}, up {found.uptime_s:.0f} s, generation "
        f"{found.generation}, tables: {_safe(', '.join(found.tables) or 'none')}</p>",
    ]
    if found.total_steps:
        loss = "" if found.loss is None else f", loss {found.loss:.4f}"
        parts.append(
            f'<progress max="{found.total_steps}" value="{found.step}"></progress><p>step '
            f"{found.step:,} of {found.total_steps:,}{loss}, {found.samples_per_s:,.0f} samples/s, "
            f"the slowest trainer {found.lag_steps} steps behind</p>"
        )
    if found.checkpoint is not None and not found.checkpoint["error"]:
        place = _safe(str(found.checkpoint["path"]))
        age = found.checkpoint["age_s"]
        parts.append(
            f"<p>newest checkpoint: step {found.checkpoint['step']}, {age:.0f} s ago, {place}</p>"
        )
    parts += [f'<p class="warning">{_safe(warning)}</p>' for warning in found.warnings]
    parts.append(_members(found))
    if found.result:
        rows = "".join(
            f"<tr><td>{_safe(k)}</td><td>{v:.6g}</td></tr>" for k, v in found.result.items()
        )
        parts.append(f"<h2>Newest finished run</h2><table>{rows}</table>")
    return "".join([*parts, _TAIL])


def _members(found: ClusterStatus) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("name", "role", "address", "step", "contexts", "last seen")
    )
    rows = [
        f"<tr><td>{_safe(m.name)}</td><td>{_safe(m.role)}</td><td>{_safe(m.address)}</td>"
        f"<td>{'' if m.step is None else m.step}</td><td>{m.open_contexts or ''}</td>"
        f"<td>{m.silence_s:.1f} s ago</td></tr>"
        for m in found.members
    ]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _safe(text: str) -> str:
    """Return text of other processes as HTML that shows it."""
    return html.escape(printable(text))
