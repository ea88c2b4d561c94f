#!/usr/bin/env python3
"""The built programs: how they are protected, and what deploy/sbom says."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from manifests import DEPLOY

BIN = pathlib.Path(os.environ.get("COHORT_BIN_DIR", "none"))
PROGRAMS = [BIN / name for name in ("cohort-server", "cohort-worker",
                                    "cohortctl") if (BIN / name).exists()]

# A field of SPDX 2.3's tag-value format, and what may stand in it.
IDENTIFIER = r"SPDXRef-[A-Za-z0-9.-]+"
HEAD = {
    "SPDXVersion": r"SPDX-2\.3", "DataLicense": r"CC0-1\.0",
    "SPDXID": "SPDXRef-DOCUMENT", "DocumentName": r"\S+",
    "DocumentNamespace": r"https://[^\s#]+", "Creator": r"Tool: \S+",
    "Created": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"}
PACKAGE = {
    "PackageName": r"\S+", "SPDXID": IDENTIFIER, "PackageVersion": r"\S+",
    "PackageSupplier": r"NOASSERTION|Organization: \w+",
    "PackageDownloadLocation": "NOASSERTION", "FilesAnalyzed": "false",
    "PackageLicenseConcluded": "NOASSERTION",
    "PackageLicenseDeclared": "NOASSERTION",
    "PackageCopyrightText": "NOASSERTION"}
REFERENCE = r"PACKAGE-MANAGER purl pkg:deb/debian/[\w.%-]+@[\w.%-]+\?arch=\w+"
RELATION = rf"({IDENTIFIER}) (DESCRIBES|DEPENDS_ON|CONTAINS) ({IDENTIFIER})"


def faults(text: str) -> list[str]:
    """Returns what in a document is not as SPDX 2.3 wants it."""
    found, identifiers, related = [], [], []
    for number, block in enumerate(text.strip().split("\n\n")):
        fields = [tuple(line.split(": ", 1)) for line in block.splitlines()]
        wanted = HEAD if number == 0 else PACKAGE
        if [name for name, *_ in fields][:len(wanted)] != list(wanted):
            found.append(f"block {number}: fields {fields}")
            continue
        identifiers.append(dict(fields)["SPDXID"])
        for name, value in fields:
            if name == "Relationship":
                related.append(re.fullmatch(RELATION, value))
                pattern = RELATION
            else:
                pattern = {**wanted, "ExternalRef": REFERENCE}.get(name, "")
            if not re.fullmatch(pattern, value):
                found.append(f"{name}: {value}")
    if len(set(identifiers)) != len(identifiers):
        found.append("an identifier is given twice")
    for relation in related:
        for end in relation.group(1, 3) if relation else ():
            if end not in identifiers:
                found.append(f"{end} is related and not described")
    return found


@unittest.skipUnless(PROGRAMS and shutil.which("readelf"),
                     "no programs in COHORT_BIN_DIR, or no readelf")
class ProtectionTest(unittest.TestCase):

    def readelf(self, program: pathlib.Path, *flags: str) -> str:
        return subprocess.run(["readelf", "-W", *flags, program], check=True,
                              capture_output=True, text=True).stdout

    def test_programs_are_built_hardened(self):
        for program in PROGRAMS:
            with self.subTest(program=program.name):
                dynamic = self.readelf(program, "-d")
                # At any address, and with a table of functions that is filled
                # at the start and read-only from then on.
                self.assertRegex(dynamic, r"FLAGS_1.*\bNOW\b.*\bPIE\b")
                segments = self.readelf(program, "-l")
                self.assertIn("GNU_RELRO", segments)
                self.assertRegex(segments, r"GNU_STACK .* RW +0x")
                symbols = self.readelf(program, "--dyn-syms")
                self.assertIn("__stack_chk_fail", symbols)
                # Checked copies: _FORTIFY_SOURCE.
                self.assertRegex(symbols, r"__(?!stack)\w+_chk@")
                self.assertNotRegex(dynamic, r"\((RPATH|RUNPATH)\)")


class SbomTest(unittest.TestCase):

    def sbom(self, *arguments: object) -> str:
        done = subprocess.run(
            [DEPLOY / "sbom", *arguments], capture_output=True, text=True,
            check=False, timeout=300,
            env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    @unittest.skipUnless(PROGRAMS, "no programs in COHORT_BIN_DIR")
    def test_the_packages_of_a_program_are_listed(self):
        for program in PROGRAMS:
            text = self.sbom(program.name, "0.1.0", program)
            self.assertEqual(faults(text), [])
            names = re.findall("^PackageName: (.*)$", text, re.M)
            self.assertEqual(names[0], program.name)
            self.assertLessEqual({"libc6", "libgrpc++1.51", "libssl3"},
                                 set(names))
            self.assertEqual("libtorch1.13" in names,
                             program.name == "cohort-worker")
            self.assertIn("Created: 1970-01-01T00:00:00Z", text)

    def test_without_a_program_all_packages_of_the_system_are(self):
        """On a system of two of Debian's packages and one of the images'."""
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder) / "dpkg-query"
            tool.write_text("#!/bin/sh\ncat <<'END'\n"
                            "installed libc++1 1:2.3+x~y amd64\n"
                            "config-files gone 1 amd64\n"
                            "installed cohort-no-graphics 1 all\n"
                            "installed tzdata 2026a all\nEND\n")
            tool.chmod(0o755)
            text = subprocess.run(
                [DEPLOY / "sbom", "image", "0.1.0"], check=True,
                capture_output=True, text=True, timeout=60,
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            ).stdout
        self.assertEqual(faults(text), [])
        self.assertEqual(re.findall("purl (.*)", text), [
            "pkg:deb/debian/libc%2B%2B1@1%3A2.3%2Bx%7Ey?arch=amd64",
            "pkg:deb/debian/tzdata@2026a?arch=all"])
        self.assertEqual(len(re.findall(" CONTAINS ", text)), 3)
        self.assertEqual(text.count("PackageSupplier: Organization: Debian"), 2)

    def test_faults_are_found(self):
        good = self.sbom("a", "1", "/bin/true")
        for before, after in (("SPDX-2.3", "2.3"),
                              ("FilesAnalyzed: false\n", ""),
                              ("SPDXRef-Package-a\n", "SPDXRef-Package+a\n"),
                              ("DESCRIBES SPDXRef-Package-a",
                               "DESCRIBES SPDXRef-Package-b")):
            self.assertNotEqual(faults(good.replace(before, after, 1)), [],
                                before)


if __name__ == "__main__":
    unittest.main()
