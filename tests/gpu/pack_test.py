#!/usr/bin/env python3
"""The bundle of tests/gpu/pack is complete: a machine without a package
registry builds with it, and the programs find their libraries at run time."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

PACK = pathlib.Path(__file__).resolve().parent / "pack"
# Libraries of the C and C++ runtime, which every machine has already.
OF_THE_SYSTEM = re.compile(
    r"(ld-linux|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|gomp))[-.]")


def dynamic(path: pathlib.Path, key: str) -> list[str]:
    """Returns the values of `key` in a library's dynamic section."""
    text = subprocess.run(["objdump", "-p", path], check=True,
                          capture_output=True, text=True).stdout
    return re.findall(rf"^\s*{key}\s+(\S+)", text, re.M)


@unittest.skipIf(shutil.which("grpc_cpp_plugin") is None,
                 "no packages of Debian to bundle here")
class PackTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name) / "deps"
        subprocess.run([PACK, f"{cls.root}/"], check=True,
                       stdout=subprocess.DEVNULL)
        cls.folder = cls.root / "usr/lib/x86_64-linux-gnu"
        cls.libraries = [path for path in cls.root.rglob("*.so*")
                         if not path.is_symlink()
                         and path.read_bytes()[:4] == b"\x7fELF"]

    def test_each_library_lies_under_the_name_that_programs_ask_for(self):
        self.assertGreater(len(self.libraries), 50)
        for library in self.libraries:
            for name in dynamic(library, "SONAME"):
                self.assertTrue((library.parent / name).exists(),
                                f"{library.name} is asked for as {name}")

    def test_libraries_behind_the_libraries_are_there(self):
        for library in self.libraries:
            for name in dynamic(library, "NEEDED"):
                self.assertTrue(
                    OF_THE_SYSTEM.match(name) or (self.folder / name).exists(),
                    f"{library.name} needs {name}")

    def test_no_header_lies_where_only_a_systems_compiler_looks(self):
        include = self.root / "usr/include"
        self.assertTrue((include / "x86_64-linux-gnu").is_symlink())
        for header in ("jconfig.h", "openssl/configuration.h", "gmp.h"):
            self.assertTrue((include / header).is_file(), header)

    def test_links_lead_somewhere(self):
        for path in self.root.rglob("*"):
            self.assertTrue(path.exists(), f"{path} leads nowhere")

    def test_tools_run_from_any_place(self):
        version = subprocess.run([self.root / "usr/bin/protoc", "--version"],
                                 check=True, capture_output=True, text=True)
        self.assertRegex(version.stdout, r"libprotoc \d+")

    def test_what_is_there_is_not_overwritten(self):
        again = subprocess.run([PACK, f"{self.root}/"], capture_output=True,
                               text=True, check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn("is there already, want a new folder", again.stderr)


if __name__ == "__main__":
    unittest.main()
