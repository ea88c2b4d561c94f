"""Serves the page's files with a status that the test invents.

    python3 fixture_server.py crowd      to look at one of statuses.py
"""

import http.server
import json
import pathlib
import sys
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "server/status_page"
CHART = pathlib.Path("/usr/share/javascript/chart.js/chart.min.js")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css",
         ".js": "text/javascript"}
# The header that the server sends.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; "
          "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; "
          "base-uri 'none'; form-action 'none'")


def why_not():
    """Names what is missing for a fixture; None if nothing is."""
    return None if CHART.exists() else "no Chart.js (package libjs-chart.js)"


class _QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Silent: a browser that leaves a page closes the connection."""


class FixtureServer:
    """`status` is the next answer to the page; None: an error.

    `chart`: whether there is a Chart.js. `raw` goes into the page as it is, as
    it would if the server forgot to escape. `pause_s`: how long an answer to
    /status.json takes. Nothing happens between answers.
    """

    def __init__(self, status, chart=True, raw=""):
        self.status = status
        self.chart = chart
        self.raw = raw
        self.pause_s = 0.0
        # For status requests: when each came, and how many were open at once.
        self.asked_at = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        fixture = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                fixture.answer(self)

            def log_message(self, *_):
                pass

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever,
                                        kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request):
        code, kind, body = self._content(request.path)
        request.send_response(code)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Security-Policy", POLICY)
        request.send_header("X-Content-Type-Options", "nosniff")
        request.send_header("Cache-Control", "no-store")
        request.end_headers()
        request.wfile.write(body)

    def _content(self, path):
        if path == "/status.json?parts=all":
            return self._status()
        name = "page.html" if path == "/" else path.lstrip("/")
        file = CHART if path == "/chart.js" else PAGE / name
        if file.suffix not in TYPES or not file.is_file() or (
                path == "/chart.js" and not self.chart):
            return 404, "text/plain", b"not found"
        body = file.read_bytes()
        if path == "/":
            body = body.replace(b"<noscript>", self.raw.encode() + b"<noscript>")
        return 200, TYPES[file.suffix], body

    def _status(self):
        with self._lock:
            self.asked_at.append(time.monotonic())
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self.pause_s)
        status = self.status
        with self._lock:
            self._at_once -= 1
        if status is None:
            return 503, "text/plain", b"stopping"
        body = json.dumps(status).encode()
        return 200, "application/json", body


if __name__ == "__main__":
    import statuses
    with FixtureServer(getattr(statuses, sys.argv[1])()) as shown:
        print(shown.url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
