"""Shared parts of the tests of the live page in a browser."""

import os
import sys
import unittest

import fixture_server
import webdriver
from fixture_server import FixtureServer

LOOKS = [(width, height, scheme)
         for width, height in ((1280, 800), (820, 1180), (390, 844))
         for scheme in ("light", "dark")]
# Pictures for a person to look at go there; without it there are none.
PICTURES = os.environ.get("COHORT_SCREENSHOT_DIR")


class PageCase(unittest.TestCase):
    """A browser for each class, and a page that starts empty for each test."""

    @classmethod
    def setUpClass(cls):
        cls.browser = webdriver.Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.set_look(1280, 800)
        # The previous test's page would keep asking a server that is gone.
        self.browser.open("about:blank")
        self.browser.complaints()

    def show(self, status, **options):
        """Opens the page and waits for the first answer to be on it."""
        server = FixtureServer(status, **options)
        self.addCleanup(server.__exit__)
        self.browser.open(server.url)
        self.browser.wait_until(
            lambda: self.browser.text("#fresh").startswith("updated"),
            "the first answer")
        return server

    def chart(self, expression, figure="#curve-loss"):
        """Of the chart of a figure, such as "scales.x.min"."""
        return self.browser.script(
            "return Chart.getChart(document.querySelector(arguments[0] + "
            f"' canvas')).{expression}", figure)

    def says(self, selector, part):
        self.assertIn(part, self.browser.text(selector))

    def count(self, selector):
        return self.browser.script(
            "return document.querySelectorAll(arguments[0]).length", selector)

    def take_pictures(self, name):
        """The page as it is now, in each look."""
        if not PICTURES:
            return
        for width, height, scheme in LOOKS:
            self.browser.set_look(width, height, scheme)
            self.browser.screenshot(f"{PICTURES}/{name}-{width}-{scheme}.png")
        self.browser.set_look(1280, 800)

    def assertNoComplaints(self):
        self.assertEqual(self.browser.complaints(), [])


def main():
    missing = webdriver.why_not() or fixture_server.why_not()
    if missing:
        print(f"OK (skipped=all: {missing})")
        sys.exit(0)
    unittest.main(module="__main__", verbosity=2)
