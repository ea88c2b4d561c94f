#!/usr/bin/env python3
"""The Debian packages and systemd's units: their content."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import manifests
from manifests import DEPLOY

CONFINED = {
    "CapabilityBoundingSet": "", "DynamicUser": "yes",
    "LockPersonality": "yes", "NoNewPrivileges": "yes", "PrivateTmp": "yes",
    "ProtectSystem": "strict", "RestrictNamespaces": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures": "native", "SystemCallErrorNumber": "EPERM",
    "UMask": "0077"}
UNITS = {"server": "cohort-server.service", "shard": "cohort-shard.service",
         "worker": "cohort-worker@.service"}
# Files in /etc/cohort.
CONFIGURATION = {"server": ("server", "shard"), "worker": ("worker",)}


def settings(path: pathlib.Path) -> dict[str, list[str]]:
    """Returns the values of each key of a unit, in order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$",
                                 path.read_text(encoding="utf-8"), re.M):
        found.setdefault(key, []).append(value)
    return found


class UnitsTest(unittest.TestCase):

    def test_variables_are_flags_of_the_program(self):
        for program, name in UNITS.items():
            given = [value.split("=")[0] for value in
                     settings(DEPLOY / "systemd" / name)["Environment"]]
            text = (DEPLOY / f"systemd/{program}.env").read_text(
                encoding="utf-8")
            given += re.findall(r"^#?(COHORT_\w+)=", text, re.M)
            self.assertGreater(len(given), 2)
            self.assertEqual(set(given) - manifests.variables_of(program),
                             set())

    # Which codes are final: exit_codes_test.py.
    def test_units_are_started_again_after_a_failure(self):
        for name in UNITS.values():
            unit = settings(DEPLOY / "systemd" / name)
            self.assertEqual(unit["Restart"], ["on-failure"])
            self.assertEqual(unit["DynamicUser"], ["yes"])

    def test_units_are_confined(self):
        for name in UNITS.values():
            unit = settings(DEPLOY / "systemd" / name)
            for key, value in CONFINED.items():
                self.assertEqual(unit.get(key), [value], f"{name}: {key}")
            # confined_test.py runs the programs under these.
            self.assertEqual(unit["SystemCallFilter"][0], "@system-service")
            self.assertIn("@privileged", unit["SystemCallFilter"][1])
        server, shard = (settings(DEPLOY / "systemd" / UNITS[name])
                         for name in ("server", "shard"))
        self.assertEqual(server["MemoryDenyWriteExecute"], ["yes"])
        # The same program, and no state.
        for key in CONFINED.keys() | {"MemoryDenyWriteExecute", "ExecStart",
                                      "SystemCallFilter", "LimitNOFILE"}:
            self.assertEqual(shard[key], server[key], key)
        self.assertEqual(shard["Environment"], ["COHORT_DATA_SHARD=true"])
        self.assertNotIn("StateDirectory", shard)

    @unittest.skipUnless(shutil.which("systemd-analyze"),
                         "no systemd-analyze (apt-get install systemd)")
    def test_systemd_knows_every_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in UNITS.values():
                # Uses a program that exists, because ours may not be
                # installed.
                text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
                path = pathlib.Path(folder) / name.replace("@", "@0")
                path.write_text(re.sub("/usr/bin/cohort-[a-z]+", "/bin/true",
                                       text), encoding="utf-8")
                result = subprocess.run(
                    ["systemd-analyze", "verify", "--man=no",
                     "--recursive-errors=no", path],
                    capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""))


BUILD = pathlib.Path(os.environ.get("COHORT_BIN_DIR", "none")).parent
PROGRAMS = ("cohort-server", "cohort-worker", "cohortctl")


def why_not_packed() -> str:
    """Says why no packages can be made here; empty if they can."""
    for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps"):
        if shutil.which(tool) is None:
            return f"no {tool} (apt-get install cmake dpkg-dev)"
    for program in PROGRAMS:
        if not (BUILD / "bin" / program).exists():
            return f"no {program} built in COHORT_BIN_DIR"
    return ""


WHY_NOT = why_not_packed()


@unittest.skipIf(WHY_NOT, f"packages not made: {WHY_NOT}")
class PackagesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        top = pathlib.Path(folder.name)
        result = subprocess.run(
            ["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", top],
            capture_output=True, text=True, check=False, cwd=top)
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        cls.packages = {path.name.split("_")[0]: path
                        for path in top.glob("*.deb")}

    def files(self, package: str) -> dict[str, str]:
        """Returns the mode of each file by its path."""
        text = subprocess.run(
            ["dpkg-deb", "--contents", self.packages[package]], check=True,
            capture_output=True, text=True).stdout
        lines = [line.split() for line in text.splitlines()]
        return {line[5].lstrip("."): line[0] for line in lines
                if not line[0].startswith("d")}

    def test_each_program_has_a_package(self):
        self.assertEqual(sorted(self.packages), sorted(PROGRAMS))

    def test_files_are_where_debian_has_them(self):
        self.assertEqual(set(self.files("cohort-server")), {
            "/usr/bin/cohort-server", "/etc/cohort/server.env",
            "/etc/cohort/shard.env",
            "/usr/lib/systemd/system/cohort-server.service",
            "/usr/lib/systemd/system/cohort-shard.service",
            "/usr/share/doc/cohort-server/copyright"})
        self.assertEqual(set(self.files("cohort-worker")), {
            "/usr/bin/cohort-worker", "/etc/cohort/worker.env",
            "/usr/lib/systemd/system/cohort-worker@.service",
            "/usr/share/doc/cohort-worker/copyright"})
        self.assertEqual(set(self.files("cohortctl")), {
            "/usr/bin/cohortctl", "/usr/share/doc/cohortctl/copyright"})
        self.assertEqual(
            self.files("cohort-server")["/usr/bin/cohort-server"],
            "-rwxr-xr-x")

    def test_edited_configuration_is_kept(self):
        for program, names in CONFIGURATION.items():
            self.assertEqual(
                self.deb_control(f"cohort-{program}", "conffiles"),
                "".join(f"/etc/cohort/{name}.env\n" for name in names))

    def deb_control(self, package: str, file: str) -> str:
        return subprocess.run(
            ["dpkg-deb", "--info", self.packages[package], file], check=True,
            capture_output=True, text=True).stdout

    def test_libraries_are_asked_for(self):
        for package, library in (("cohort-server", "libgrpc++1.51"),
                                 ("cohort-worker", "libtorch1.13"),
                                 ("cohortctl", "libgrpc++1.51")):
            depends = self.deb_field(package, "Depends")
            self.assertIn(library, depends)
        self.assertNotIn("torch", self.deb_field("cohort-server", "Depends"))

    def test_each_says_what_it_is(self):
        texts = {self.deb_field(package, "Description")
                 for package in PROGRAMS}
        self.assertEqual(len(texts), len(PROGRAMS))

    def deb_field(self, package: str, field: str) -> str:
        return subprocess.run(
            ["dpkg-deb", "--field", self.packages[package], field], check=True,
            capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    unittest.main()
