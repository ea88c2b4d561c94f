#!/usr/bin/env python3
"""One version: that of CMakeLists.txt stands wherever a file must repeat it."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBER = r"(\d+\.\d+\.\d+)"
TAG = re.compile(r"(?:cohort-(?:server|worker)(?:-cuda)?:|newTag: |"
                 rf"COHORT_TAG(?:=|:-)){NUMBER}")


def found(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.M)
    return match[1] if match else f"no version in {path}"


class VersionTest(unittest.TestCase):
    def setUp(self):
        self.version = found("CMakeLists.txt", rf"^project\(cohort VERSION {NUMBER} ")

    def test_wheel_and_changelog(self):
        self.assertEqual(found("worker/python/pyproject.toml",
                               rf'^version = "{NUMBER}"$'), self.version)
        self.assertEqual(found("CHANGELOG.md", rf"^## {NUMBER} "), self.version)

    def test_images(self):
        files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
        tags = {path: set(TAG.findall(path.read_text(encoding="utf-8")))
                for path in files}
        named = {path: seen for path, seen in tags.items() if seen}
        self.assertGreater(len(named), 5)
        for path, seen in named.items():
            with self.subTest(path=path):
                self.assertEqual(seen, {self.version})


if __name__ == "__main__":
    unittest.main()
