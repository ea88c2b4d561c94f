#!/usr/bin/env python3
"""deploy/containers: the Containerfiles, and the script that uses them."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import manifests
from manifests import ROOT

CONTAINERS = ROOT / "deploy/containers"
FILES = sorted(CONTAINERS.glob("*.Containerfile"))
BIN = {"server": "/usr/bin", "worker": "/usr/bin", "python": "/opt/venv/bin"}
RUNS = {"server": "cohort-server", "worker": "cohort-worker", "python": "python3"}
LABELS = ("title", "description", "licenses", "version", "revision")


def instructions(path: pathlib.Path) -> list[tuple[str, str]]:
    """Returns (INSTRUCTION, rest) of each, lines joined, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines()
             if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in
            (line.partition(" ") for line in text.splitlines() if line)]


def last_stage(path: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the instructions of the image itself."""
    all_of_it = instructions(path)
    begin = max(i for i, (word, _) in enumerate(all_of_it) if word == "FROM")
    return all_of_it[begin:]


def program_of(path: pathlib.Path) -> str:
    return path.name.split(".")[0].split("-")[0]


class ContainerfilesTest(unittest.TestCase):

    def check_all(self, check) -> None:
        self.assertGreaterEqual(len(FILES), 2)
        for path in FILES:
            with self.subTest(file=path.name):
                check(path, last_stage(path))

    def one(self, stage: list[tuple[str, str]], word: str) -> str:
        only, = (rest for name, rest in stage if name == word)
        return only

    def test_runs_the_program_itself_as_nobody_in_particular(self):
        def check(path, stage):
            program = program_of(path)
            self.assertEqual(json.loads(self.one(stage, "ENTRYPOINT")),
                             [f"{BIN[program]}/cohortctl", "supervise", "--",
                              f"{BIN[program]}/{RUNS[program]}"])
            self.assertRegex(self.one(stage, "USER"), r"^[1-9]\d{3,}:\d+$")
            self.assertEqual(self.one(stage, "STOPSIGNAL"), "SIGTERM")
        self.check_all(check)

    def test_health_is_asked_of_the_operations_port(self):
        def check(path, stage):
            text = self.one(stage, "HEALTHCHECK")
            command = json.loads(text[text.index("["):])
            self.assertEqual(command[:2], [
                f"{BIN[program_of(path)]}/cohortctl", "health"])
            if program_of(path) != "server":
                self.assertIn("--ops=127.0.0.1:7072", command)
                self.assertIn("COHORT_OPS_LISTEN=127.0.0.1:7072",
                              self.one(stage, "ENV"))
        self.check_all(check)

    def test_labels_tell_what_it_is(self):
        def check(_, stage):
            text = self.one(stage, "LABEL")
            for label in LABELS:
                self.assertIn(f"org.opencontainers.image.{label}=", text)
            self.assertIn('version="${VERSION}"', text)
            self.assertIn('revision="${COMMIT}"', text)
        self.check_all(check)

    def test_bases_can_be_chosen_and_have_versions(self):
        def check(path, _):
            default = dict(rest.split("=", 1) for word, rest in
                           instructions(path) if word == "ARG" and "=" in rest)
            for word, rest in instructions(path):
                if word == "FROM":
                    base = re.match(r"\$\{(\w+)\}", rest).group(1)
                    self.assertRegex(default[base], r":(?!latest)\S+$")
        self.check_all(check)

    def test_package_lists_are_not_kept(self):
        def check(_, stage):
            for word, rest in stage:
                if word == "RUN" and "install" in rest:
                    self.assertIn("rm -rf /var/lib/apt/lists/*", rest)
        self.check_all(check)

    def test_variables_are_flags_of_the_program(self):
        def check(path, stage):
            for word, rest in stage:
                if word == "ENV":
                    self.assertEqual(
                        set(re.findall(r"\b(COHORT_\w+)=", rest)) -
                        manifests.variables_of(
                            "server" if program_of(path) == "server"
                            else "worker"), set())
        self.check_all(check)

    def test_a_user_without_a_name_has_what_torch_reads(self):
        environment = self.one(
            last_stage(CONTAINERS / "python.Containerfile"), "ENV")
        self.assertIn("HOME=/tmp ", environment)
        self.assertRegex(environment, r"\bUSER=\w")

    def test_what_the_build_needs_is_sent(self):
        kept = re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(
            encoding="utf-8"), re.M)
        cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
        needed = set(re.findall(r"^add_subdirectory\((\w+)\)", cmake, re.M))
        self.assertEqual(needed - set(kept), set())
        self.assertEqual((ROOT / ".dockerignore").resolve(),
                         ROOT / ".containerignore")


class BuildScriptTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        tool = self.top / "podman"
        tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >>"$NOTES"\n')
        tool.chmod(0o755)

    def build(self, *arguments: str, tool: str = "podman"
              ) -> tuple[subprocess.CompletedProcess, list[str]]:
        notes = self.top / "notes"
        notes.unlink(missing_ok=True)
        result = subprocess.run(
            [CONTAINERS / "build", *arguments], capture_output=True, text=True,
            check=False, stdin=subprocess.DEVNULL, timeout=60, cwd="/",
            env={"PATH": f"{self.top}:{os.environ['PATH']}",
                 "CONTAINER_TOOL": tool, "NOTES": str(notes)})
        return result, notes.read_text().splitlines() if notes.exists() else []

    def test_builds_server_and_worker_with_version_and_commit(self):
        result, calls = self.build()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(calls.count("build"), 2)
        tags = [calls[i + 1] for i, word in enumerate(calls)
                if word == "--tag"]
        self.assertRegex(" ".join(tags),
                         r"^cohort-server:(\d+\.\d+\.\d+) cohort-worker:\1$")
        self.assertRegex("\n".join(calls), r"\nVERSION=\d+\.\d+\.\d+\n")
        self.assertRegex("\n".join(calls),
                         r"\nCOMMIT=([0-9a-f]{12}(-dirty)?|unknown)\n")
        self.assertIn("docker", calls[calls.index("--format") + 1])

    def test_arguments_go_to_the_tool(self):
        result, calls = self.build("server", "--", "--build-arg", "BASE=a:1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(calls.count("build"), 1)
        self.assertIn("BASE=a:1", calls)

    def test_docker_has_no_formats(self):
        shutil.copy(self.top / "podman", self.top / "docker")
        _, calls = self.build(tool="docker")
        self.assertNotIn("--format", calls)

    def test_an_unknown_image_is_refused_with_those_there_are(self):
        result, calls = self.build("sever")
        self.assertEqual((result.returncode, calls), (2, []))
        self.assertIn("no image 'sever'", result.stderr)
        self.assertIn("server", result.stderr.split("there are:")[1])


if __name__ == "__main__":
    unittest.main()
