"""A small client of the WebDriver protocol, for headless Chromium."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
DRIVER = ("chromedriver",)
ELEMENT_KEY = "element-6066-11e4-a52e-4f735466cecf"

# Records what the page's own policy blocked, starting before its first byte.
NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
  window.violations.push(event.violatedDirective + ' ' + event.blockedURI));
"""


def _found(names):
    return next(filter(None, map(shutil.which, names)), None)


def why_not():
    """Names what is missing for a browser test; None if nothing is."""
    if _found(CHROMIUM) is None:
        return "no Chromium (Debian package chromium)"
    if _found(DRIVER) is None:
        return "no chromedriver (Debian package chromium-driver)"
    return None


class WebDriverError(Exception):
    pass


class Browser:
    """One headless browser with one page."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="cohort-browser-")
        self._driver = subprocess.Popen(
            [_found(DRIVER), "--port=0"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._session = None
        self._look = (1280, 800)
        try:
            self._url = f"http://127.0.0.1:{self._read_port()}"
            self._session = self._request("POST", "/session", {
                "capabilities": {"alwaysMatch": self._capabilities()},
            })["sessionId"]
            self.devtools("Page.addScriptToEvaluateOnNewDocument",
                          source=NOTE_VIOLATIONS)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._session is not None:
            try:
                self._request("DELETE", f"/session/{self._session}")
            except (WebDriverError, OSError):
                pass
            self._session = None
        self._driver.terminate()
        self._driver.wait()
        self._driver.stdout.close()
        self._profile.cleanup()

    def _capabilities(self):
        return {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {
                "binary": _found(CHROMIUM),
                "args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                         "--disable-dev-shm-usage", "--hide-scrollbars",
                         f"--user-data-dir={self._profile.name}"],
            },
        }

    def _read_port(self):
        for line in self._driver.stdout:
            match = re.search(r"started successfully on port (\d+)", line)
            if match:
                return int(match.group(1))
        raise WebDriverError("chromedriver ended before it listened")

    def _request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"},
            method=method)
        # Never through a proxy from the environment: the driver is local.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise WebDriverError(
                f"{path}: {value['error']}: {value['message']}") from error

    def command(self, name, body=None, method="POST"):
        return self._request(method, f"/session/{self._session}/{name}", body)

    def devtools(self, command, **params):
        return self.command("goog/cdp/execute",
                            {"cmd": command, "params": params})

    def open(self, url):
        self.command("url", {"url": url})

    def script(self, text, *arguments):
        """Runs the body of a function; its value must be plain JSON."""
        return self.command("execute/sync",
                            {"script": text, "args": list(arguments)})

    def text(self, selector):
        """The visible text of the first such element."""
        element = self.command("element", {"using": "css selector",
                                           "value": selector})
        return self.command(f"element/{element[ELEMENT_KEY]}/text",
                            method="GET")

    def click(self, selector):
        element = self.command("element", {"using": "css selector",
                                           "value": selector})
        self.command(f"element/{element[ELEMENT_KEY]}/click", {})

    def drag(self, selector, begin, end):
        """Drags across an element, between two shares of its width."""
        box = self.script(
            "const box = document.querySelector(arguments[0])"
            ".getBoundingClientRect();"
            "return [box.left, box.top, box.width, box.height];", selector)
        y = round(box[1] + box[3] / 2)

        def move(share):
            return {"type": "pointerMove", "duration": 50,
                    "x": round(box[0] + share * box[2]), "y": y}

        self.command("actions", {"actions": [{
            "type": "pointer", "id": "mouse",
            "parameters": {"pointerType": "mouse"},
            "actions": [move(begin), {"type": "pointerDown", "button": 0},
                        move((begin + end) / 2), move(end),
                        {"type": "pointerUp", "button": 0}]}]})

    def wait_until(self, condition, what):
        """Polls until `condition()` is true; 600 s bound a hang."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > 600:
                raise AssertionError(
                    f"gave up waiting for {what}; the page says:\n"
                    f"{self.text('body')[:2000]}")
            time.sleep(0.02)

    def set_look(self, width, height, scheme="light"):
        self._look = (width, height)
        self._set_size(width, height)
        self.devtools("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}])

    def _set_size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width,
                      height=height, deviceScaleFactor=1, mobile=width < 600)

    def set_scripts(self, enabled):
        self.devtools("Emulation.setScriptExecutionDisabled",
                      value=not enabled)

    def screenshot(self, path, whole=True):
        """Writes the page as a PNG file: all of it, or the window's part."""
        width, height = self._look
        # captureBeyondViewport is not used: it resizes the page for a moment,
        # and charts are then captured half-drawn.
        if whole:
            self._set_size(width, self.script(
                "return document.documentElement.scrollHeight"))
        self.command("execute/async", {"script":
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(done));",
            "args": []})
        answer = self.devtools("Page.captureScreenshot", format="png")
        self._set_size(width, height)
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self):
        """Console warnings and errors since the last call, and the requests
        that the page's policy blocked since it was opened."""
        logged = self.command("se/log", {"type": "browser"})
        found = [entry["message"] for entry in logged
                 if entry["level"] in ("WARNING", "SEVERE")]
        return found + self.script("return window.violations || [];")
