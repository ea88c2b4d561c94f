#!/usr/bin/env python3
"""Makes the pictures of the README from a real run.

Trains the built-in cnn on Fashion-MNIST with four workers, one of which is
slower than the others, and takes the live page and `cohortctl watch` in light
and dark.

    tests/status_page/make_pictures.py --bin=build/release/bin \
        --out=server/status_page/pictures
"""

import argparse
import html
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import time

try:
    import fcntl
    import termios
except ImportError:
    sys.exit("make_pictures: needs a Unix system")

WORKERS = 4
WIDTH, HEIGHT = 1280, 890
COLUMNS, ROWS = 100, 30
# Long enough for a curve and two evaluations.
RUN_S = 60
ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
  body {{ margin: 0; background: {back}; color: {text}; }}
  pre {{ margin: 20px 24px; font: 15px/1.35 "DejaVu Sans Mono", monospace; }}
</style><pre>{frame}</pre>"""
COLOURS = {"light": ("#ffffff", "#1c1c1c"), "dark": ("#16181c", "#e6e6e6")}


def last_frame(stream: str) -> str:
    """The text of the last whole screen, with bold as HTML."""
    frame = re.split(r"\x1b\[H(?:\x1b\[2J)?", stream)[-2]
    frame = frame.split("\x1b[J")[0]
    out = []
    at = 0
    for match in ESCAPE.finditer(frame):
        out.append(html.escape(frame[at:match.start()]))
        if match.group(2) == "m":
            out.append({"1": "<b>", "0": "</b>", "": "</b>"}.get(
                match.group(1), ""))
        at = match.end()
    out.append(html.escape(frame[at:]))
    return "".join(out).replace("\r", "").rstrip("\n")


def watch(ctl: pathlib.Path, server: str) -> str:
    """A frame of `cohortctl watch` on a terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ,
                struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen([ctl, "watch", f"--server={server}"],
                          stdin=follower, stdout=follower,
                          stderr=subprocess.DEVNULL,
                          env={**os.environ, "TERM": "xterm"},
                          # With a separate terminal it reads keys.
                          start_new_session=True,
                          preexec_fn=lambda: fcntl.ioctl(
                              0, termios.TIOCSCTTY, 0)) as process:
        os.close(follower)
        stream = b""
        until = time.monotonic() + 6
        while time.monotonic() < until:
            if select.select([leader], [], [], 0.2)[0]:
                stream += os.read(leader, 1 << 16)
        process.terminate()
        process.wait(timeout=30)
    os.close(leader)
    return last_frame(stream.decode("utf-8", errors="replace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    binaries = arguments.bin.resolve()
    os.environ["COHORT_BIN_DIR"] = str(binaries)
    tests = pathlib.Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(tests / "integration"))
    import processes  # pylint: disable=import-outside-toplevel
    import webdriver  # pylint: disable=import-outside-toplevel

    arguments.out.mkdir(parents=True, exist_ok=True)
    flags = ["--batch_size=16", "--limit=6000", "--test_limit=1000"]
    with tempfile.TemporaryDirectory() as folder, \
            webdriver.Browser() as browser, \
            processes.Cohort(workers=WORKERS, worker_flags=flags,
                             server_flags=["--epochs=30",
                                           "--run_name=fashion-cnn",
                                           "--schedule=constant"]) as cohort:
        cohort.start_server()
        for rank in range(WORKERS):
            # One worker computes more than the others, which is visible.
            cohort.start_worker(rank, *(["--share=1.5"] if rank == 2 else []))
        browser.set_look(WIDTH, HEIGHT)
        browser.open(f"http://{cohort.ops}/")
        time.sleep(RUN_S)
        for scheme in COLOURS:
            browser.set_look(WIDTH, HEIGHT, scheme)
            time.sleep(2)
            browser.screenshot(arguments.out / f"page-{scheme}.png",
                               whole=False)
        frame = watch(binaries / "cohortctl", cohort.address)
        screen = pathlib.Path(folder) / "watch.html"
        for scheme, (back, text) in COLOURS.items():
            screen.write_text(TERMINAL.format(back=back, text=text,
                                              frame=frame), encoding="utf-8")
            browser.set_look(980, 400, scheme)
            browser.open(screen.as_uri())
            browser.screenshot(arguments.out / f"watch-{scheme}.png",
                               whole=False)


if __name__ == "__main__":
    main()
