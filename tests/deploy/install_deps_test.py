#!/usr/bin/env python3
"""deploy/install-deps, with a dpkg and an apt that only record their calls."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy/install-deps"

# Reports the packages named in the file `installed` as installed.
DPKG_QUERY = r"""#!/bin/bash
for package in "$@"; do
  if grep -qxF -- "$package" "$NOTES/installed"; then
    echo "installed $package"
  fi
done
exit 1  # As dpkg-query does if any is unknown.
"""

APT_GET = r"""#!/bin/bash
echo "$@" >>"$NOTES/calls"
[[ " $* " == *" install "* ]] || exit 0
printf '%s\n' "$@" >>"$NOTES/installed"
"""

SUDO = '#!/bin/sh\nexec "$@"\n'


class InstallDepsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.notes = pathlib.Path(folder.name)
        for name, text in (("dpkg-query", DPKG_QUERY), ("apt-get", APT_GET),
                           ("sudo", SUDO)):
            path = self.notes / name
            path.write_text(text)
            path.chmod(0o755)
        self.set_installed([])
        self.set_system("debian", "12")

    def set_system(self, name: str, version: str) -> None:
        (self.notes / "os-release").write_text(
            f'ID={name}\nVERSION_ID="{version}"\nPRETTY_NAME=Some\n')

    def set_installed(self, packages: list[str]) -> None:
        (self.notes / "installed").write_text(
            "".join(f"{package}\n" for package in packages))

    def run_script(self, *arguments: str, **environment: str
                   ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [SCRIPT, *arguments], capture_output=True, text=True, cwd="/",
            stdin=subprocess.DEVNULL, timeout=60, check=False,
            env={"PATH": f"{self.notes}:{os.environ['PATH']}",
                 "NOTES": str(self.notes),
                 "OS_RELEASE_FILE": str(self.notes / "os-release"),
                 **environment})

    def packages(self, which: str) -> list[str]:
        return self.run_script("--print", which).stdout.split()

    def apt_calls(self) -> list[str]:
        notes = self.notes / "calls"
        return notes.read_text().splitlines() if notes.exists() else []

    def test_each_set_begins_with_the_one_before_it(self):
        for names in (("server", "run", "build", "test", "full"),
                      ("server", "server-build", "python")):
            for smaller, larger in zip(names, names[1:]):
                few, many = self.packages(smaller), self.packages(larger)
                self.assertEqual(many[:len(few)], few)
                self.assertGreater(len(many), len(few))

    def test_the_server_is_run_and_built_without_libtorch(self):
        for name in ("server", "server-build", "python"):
            self.assertNotIn("torch", " ".join(self.packages(name)))
        self.assertLess(set(self.packages("server-build")),
                        set(self.packages("build")))

    def test_no_package_is_listed_twice(self):
        packages = self.packages("full")
        self.assertEqual(len(packages), len(set(packages)))

    def test_apt_is_not_called_when_everything_is_there(self):
        self.set_installed(self.packages("test"))
        result = self.run_script("test")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("are installed", result.stdout)
        self.assertEqual(self.apt_calls(), [])

    def test_only_missing_packages_are_installed(self):
        packages = self.packages("run")
        self.set_installed(packages[1:])
        result = self.run_script("run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"missing: {packages[0]}\n", result.stdout)
        update, install = self.apt_calls()
        self.assertTrue(update.endswith("update"), update)
        self.assertTrue(
            install.endswith(
                f"install -y --no-install-recommends {packages[0]}"), install)

    def test_package_that_is_still_missing_afterwards_is_an_error(self):
        (self.notes / "apt-get").write_text("#!/bin/sh\n")
        result = self.run_script("run")
        self.assertEqual(result.returncode, 1)
        self.assertIn("still missing after apt-get", result.stderr)

    def test_debian_13_names_its_libraries_otherwise(self):
        of_12 = self.packages("full")
        self.set_system("debian", "13")
        of_13 = self.packages("full")
        renamed = {old: new for old, new in zip(of_12, of_13) if old != new}
        self.assertEqual(len(of_13), len(of_12))
        self.assertEqual(len(renamed), 10)
        self.assertEqual(renamed["libtorch1.13"], "libtorch2.6")
        self.assertEqual(renamed["libssl3"], "libssl3t64")
        # Those to compile with have the same names.
        self.assertFalse([old for old in renamed
                          if old.endswith("-dev") and "clang" not in old])
        self.set_installed(of_13[1:])
        self.assertEqual(self.run_script("full").returncode, 0)
        self.assertTrue(self.apt_calls()[-1].endswith(f" {of_13[0]}"))

    def test_on_another_system_nothing_is_installed(self):
        for system in (("ubuntu", "24.04"), ("debian", "11"), ("debian", "")):
            self.set_system(*system)
            result = self.run_script("run")
            self.assertEqual(result.returncode, 1)
            self.assertIn("COHORT_SKIP_DEPS=1", result.stderr)
            self.assertIn(f"\n  {self.packages('run')[0]}\n", result.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_skip_trusts_the_machine(self):
        result = self.run_script("full", COHORT_SKIP_DEPS="1")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(self.apt_calls(), [])

    def test_wrong_use_is_exit_code_2(self):
        for arguments in ((), ("all",), ("run", "build"), ("--print",)):
            with self.subTest(arguments=arguments):
                result = self.run_script(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn("usage:", result.stderr)


if __name__ == "__main__":
    unittest.main()
