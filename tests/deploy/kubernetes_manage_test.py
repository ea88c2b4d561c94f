#!/usr/bin/env python3
"""deploy/kubernetes/manage, with a kubectl that writes down its arguments."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]

# `exec ... cat FILE` prints a text for files that it has.
KUBECTL = r"""#!/bin/bash
printf '%s|' "$@" >>"$PLAYS/calls"
echo >>"$PLAYS/calls"
case "$*" in
  *"cohortctl status --json") cat "$PLAYS/status" ;;
  *" cat "*) file=${*: -1}
    [[ -e "$PLAYS/files/${file##*/}" ]] || exit 1
    cat "$PLAYS/files/${file##*/}" ;;
  *" get "*.monitoring.coreos.com) exit 1 ;;
  *" get statefulset cohort-shard"*) [[ -e "$PLAYS/shards" ]] ;;
esac
"""


class ManageTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = pathlib.Path(folder.name)
        (self.top / "files").mkdir()
        tool = self.top / "kubectl"
        tool.write_text(KUBECTL)
        tool.chmod(0o755)
        for name in ("status.json", "report.html", "model.safetensors"):
            (self.top / "files" / name).write_text(f"content of {name}")
        (self.top / "status").write_text('{"ended":true}')

    def manage(self, *arguments, answer=""):
        return subprocess.run(
            [SOURCE / "deploy/kubernetes/manage", *arguments], input=answer,
            env={**os.environ, "PLAYS": str(self.top),
                 "PATH": f"{self.top}:{os.environ['PATH']}"},
            capture_output=True, text=True, timeout=60, check=False)

    def calls(self):
        file = self.top / "calls"
        return [line.rstrip("|").split("|")
                for line in file.read_text().splitlines()] \
            if file.exists() else []

    def test_resize_changes_the_server_first_and_then_both_numbers(self):
        done = self.manage("-n", "team", "--run=night", "resize", "6")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls(), [
            ["-n", "team", "exec", "svc/cohort-server-night", "-c", "server",
             "--", "cohortctl", "policy", "set", "--workers=6"],
            ["-n", "team", "patch", "job", "cohort-worker-night",
             "--type=merge", "-p",
             '{"spec":{"parallelism":6,"completions":6}}']])

    def test_an_elastic_cohort_has_as_many_pods_as_it_may_have_workers(self):
        done = self.manage("-n", "team", "resize", "2:6")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call[-1] for call in self.calls()], [
            "--workers=2:6", '{"spec":{"parallelism":6,"completions":6}}'])

    def test_shards_change_while_the_old_ones_can_be_saved(self):
        self.assertIn("components/shards",
                      self.manage("-n", "team", "shards", "3").stderr)
        (self.top / "shards").touch()
        (self.top / "calls").unlink()
        done = self.manage("-n", "team", "--run=night", "shards", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls()[1:], [
            ["-n", "team", "patch", "configmap", "cohort-server-night",
             "--type=merge", "-p", '{"data":{"DATA_SHARDS":"3"}}'],
            ["-n", "team", "delete", "pod", "-l",
             "app.kubernetes.io/component=server,"
             "app.kubernetes.io/instance=night"],
            ["-n", "team", "scale", "statefulset", "cohort-shard-night",
             "--replicas=3"]])

    def test_finish_frees_data_shards_too(self):
        (self.top / "shards").touch()
        done = self.manage("-n", "t", "finish", self.top / "out")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls()[-1], [
            "-n", "t", "scale", "statefulset", "cohort-shard", "--replicas=0"])

    def test_results_are_those_that_there_are(self):
        out = self.top / "out"
        done = self.manage("-n", "team", "results", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(path.name for path in out.iterdir()),
                         ["model.safetensors", "report.html", "status.json"])
        self.assertEqual((out / "report.html").read_text(),
                         "content of report.html")

    def test_finish_frees_only_a_server_whose_run_is_over_and_saved(self):
        (self.top / "status").write_text('{"ended":false}')
        out = self.top / "out"
        self.assertIn("not over", self.manage("-n", "t", "finish", out).stderr)
        (self.top / "status").write_text('{"ended":true}')
        model = self.top / "files/model.safetensors"
        model.rename(self.top / "kept")
        self.assertIn("not written",
                      self.manage("-n", "t", "finish", out).stderr)
        self.assertNotIn("scale", str(self.calls()))
        (self.top / "kept").rename(model)
        self.assertEqual(self.manage("-n", "t", "finish", out).returncode, 0)
        self.assertEqual(self.calls()[-2], [
            "-n", "t", "scale", "statefulset", "cohort-server",
            "--replicas=0"])
        self.assertNotIn("scale", self.calls()[-1])  # No data shards.

    def test_remove_asks_and_names_only_this_run(self):
        for answer in ("", "n\n", "yes\n"):
            self.assertEqual(
                self.manage("-n", "t", "remove", answer=answer).returncode, 1)
        self.assertEqual(self.calls(), [])
        done = self.manage("-n", "t", "--run=a", "remove", answer="y\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        # This cluster has cert-manager and no Prometheus Operator.
        calls = [call for call in self.calls() if "get" not in call]
        first, second, third, secrets = calls
        for thing in ("pvc/state-cohort-server-a-0", "job/cohort-server-a",
                      "pvc/cohort-state-a", "statefulset/cohort-shard-a",
                      "service/cohort-shard-a", "pdb/cohort-shard-a"):
            self.assertIn(thing, first)
        self.assertNotIn("namespace", " ".join(first))
        self.assertIn("app.kubernetes.io/instance=a", second[-1])
        self.assertEqual(third, ["-n", "t", "delete",
                                 "certificates.cert-manager.io", *second[-2:]])
        self.assertEqual(secrets[4:], [
            f"secret/cohort-{role}-tls-a"
            for role in ("server", "worker", "operator", "viewer")])

    def test_misuse_is_explained(self):
        for arguments, said in (
                ((), "-n NAMESPACE"), (("-n", "t"), "want a command"),
                (("-n", "t", "grow", "3"), "unknown command 'grow'"),
                (("-n", "t", "resize"), "want one argument"),
                (("-n", "t", "resize", "0"), "got '0'"),
                (("-n", "t", "resize", "0:4"), "got '0:4'"),
                (("-n", "t", "resize", "2:"), "got '2:'"),
                (("-n", "t", "shards", "0"), "got '0'"),
                (("-n", "t", "shards", "2:3"), "got '2:3'"),
                (("-n", "t", "resize", ":4"), "got ':4'"),
                (("--ns", "t", "status"), "unknown flag --ns")):
            done = self.manage(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(said, done.stderr)
            self.assertEqual(self.calls(), [])


if __name__ == "__main__":
    unittest.main()
