"""A cohort with certificates: rotated under load, watched, and refused."""

import contextlib
import json
import shutil
import socket
import ssl
import unittest
import urllib.error
import urllib.request

from processes import KILLS, Cohort, kill, run
from tls_files import Certificates

# A token's hash, as in the file of --viewer_tokens, comes from cohortctl.
ROTATIONS = 4 if KILLS == 1 else 10


class EncryptedCohort(Cohort):
    """A cohort whose processes have certificates."""

    def __init__(self, **options):
        super().__init__(keeps=True, **options)
        self.certificates = Certificates(self.dir / "pki")
        self.certificates.issue("worker/0", "worker/1")
        self.server_flags += [
            *self.certificates.flags("server-0"),
            "--checkpoint_every=5",
            f"--audit_log={self.dir}/audit.jsonl"]

    def start_training(self):
        """Starts all, and waits until each has read its files and trains."""
        self.start()
        self.wait_until(lambda: self.newest_checkpoint() > 0,
                        "the first checkpoint")

    def start_worker(self, rank, *flags, wrapper=()):
        return super().start_worker(
            rank, *self.certificates.flags(f"worker-{rank}"), *flags,
            wrapper=wrapper)

    def ctl(self, *words, role="operator", code=0):
        return super().ctl(*words, *self.certificates.flags(role), code=code)


def plain_digest(epochs):
    """The weights of the same run without encryption or disturbance."""
    with Cohort(server_flags=[f"--epochs={epochs}"]) as cohort:
        cohort.start()
        return cohort.complete()


class Rotation(unittest.TestCase):
    def test_no_step_is_lost(self):
        epochs = 2 * ROTATIONS
        with EncryptedCohort(server_flags=[f"--epochs={epochs}"]) as cohort:
            cohort.start()
            for number in range(ROTATIONS):
                version = cohort.newest_checkpoint()
                cohort.certificates.issue("server/0", "worker/0", "worker/1",
                                          "viewer", "operator")
                # New connections are made with new files.
                if number % 3 == 0:
                    kill(cohort.workers[number % 2])
                    cohort.start_worker(number % 2)
                cohort.wait_until(
                    lambda: cohort.newest_checkpoint() > version or
                    cohort.server.poll() is not None, "another checkpoint")
            self.assertEqual(cohort.complete(), plain_digest(epochs))
            self.assertNotIn("cannot be used", cohort.log())


class NewAuthority(unittest.TestCase):
    """The steps of deploy/OPERATIONS.md, "Replace the authority"."""

    ROLES = ("server-0", "worker-0", "worker-1", "operator")

    def install(self, cohort, source, *files):
        """Replaces files of all roles, and waits until the server has them."""
        used = "new TLS files are in use"
        before = cohort.log().count(used)
        for role in self.ROLES:
            for file in files:
                shutil.copy(source / role / file,
                            cohort.certificates.folder / role / file)
        cohort.wait_until(lambda: cohort.log().count(used) > before, used)

    def test_replaced_without_a_restart(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            cohort.start_training()
            own = cohort.certificates.folder
            new = Certificates(cohort.dir / "new")
            new.issue("worker/0", "worker/1")
            both = cohort.dir / "both"
            for role in self.ROLES:
                (both / role).mkdir(parents=True)
                (both / role / "ca.crt").write_text(
                    (own / "ca.crt").read_text() +
                    (new.folder / "ca.crt").read_text())
            self.install(cohort, both, "ca.crt")
            shutil.copytree(own / "operator", own / "stolen")
            self.install(cohort, new.folder, "tls.key", "tls.crt")
            # Both kinds are accepted, and a worker returns with the new one.
            for role in ("operator", "stolen"):
                cohort.ctl("status", role=role)
            kill(cohort.workers[1])
            cohort.start_worker(1)
            cohort.await_log("server", "a replacement joined")
            self.install(cohort, new.folder, "ca.crt")
            cohort.ctl("status")
            # gRPC takes the content within another second.
            cohort.wait_until(
                lambda: run("cohortctl", "status", "--timeout=5s",
                            f"--server={cohort.address}",
                            *cohort.certificates.flags("stolen")).returncode,
                "the old authority to be refused")
            cohort.drain()


class BadFiles(unittest.TestCase):
    """Files that cannot be used change nothing, and the log says so."""

    def test_keep_the_good_content_in_use(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            cohort.start_training()
            other = Certificates(cohort.dir / "other", run_name="other")
            other.issue("worker/0", "worker/1")
            damages = [
                ("tls.key", lambda role: "no key"),
                ("tls.crt", lambda role: "no certificate"),
                ("ca.crt", lambda role: "no authority"),
                ("tls.key", lambda role: (
                    other.folder / role / "tls.key").read_text()),
                ("ca.crt", lambda role: (
                    other.folder / role / "ca.crt").read_text())]
            for number, (file, damaged) in enumerate(damages, start=1):
                with self.subTest(file=file, number=number):
                    self.check(cohort, file, damaged, number)

    def test_a_worker_connects_with_the_content_it_has(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            cohort.start_training()
            own = cohort.certificates.folder / "worker-0"
            (own / "tls.key").write_text("no key")
            cohort.await_log("worker0", "stays in use")
            cohort.resume_server()
            version = cohort.newest_checkpoint()
            cohort.await_checkpoint(version + 1)

    def check(self, cohort, file, damaged, number):
        paths = {role: cohort.certificates.folder / role / file
                 for role in ("server-0", "worker-0")}
        good = {role: path.read_text() for role, path in paths.items()}
        for role, path in paths.items():
            path.write_text(damaged(role))
        for process in ("server", "worker0"):
            self.await_count(cohort, process, "stays in use", number)
        self.check_connections(cohort, with_worker=number == 1 or KILLS > 1)
        for role, path in paths.items():
            path.write_text(good[role])
        for process in ("server", "worker0"):
            self.await_count(cohort, process, "can be used again", number)

    def check_connections(self, cohort, with_worker):
        """The server still takes new ones."""
        cohort.ctl("status", "--timeout=20s")
        if not with_worker:
            return
        version = cohort.newest_checkpoint()
        kill(cohort.workers[1])
        cohort.start_worker(1)
        cohort.await_checkpoint(version + 1)

    def await_count(self, cohort, process, text, count):
        cohort.wait_until(lambda: cohort.log(process).count(text) >= count,
                          f"{process} to say '{text}' {count} times")


class Rights(unittest.TestCase):
    def test_roles_over_real_connections(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            token = run("cohortctl", "certs", "token", "--name=ana",
                        f"--tokens={cohort.dir}/tokens")
            (cohort.dir / "token").write_text(token.stdout)
            cohort.start(f"--viewer_tokens={cohort.dir}/tokens")
            cohort.ctl("status")
            # A viewer looks and does not touch.
            cohort.ctl("status", role="viewer")
            drain = cohort.ctl("run", "drain", role="viewer", code=4)
            self.assertIn("/cohort.v1.Admin/Drain", drain.stderr)
            # Neither does a token, and a worker does not even look.
            own = cohort.certificates.folder / "viewer"
            by_token = [f"--server={cohort.address}", f"--tls_ca={own}/ca.crt",
                        f"--token_file={cohort.dir}/token"]
            self.assertEqual(run("cohortctl", "status", *by_token).returncode,
                             0)
            self.assertEqual(
                run("cohortctl", "run", "drain", *by_token).returncode, 4)
            cohort.ctl("status", role="worker-0", code=4)
            # Plaintext to TLS.
            plain = run("cohortctl", "status", f"--server={cohort.address}",
                        "--timeout=5s")
            self.assertEqual(plain.returncode, 5)
            self.assertIn("the server speaks TLS", plain.stderr)
            self.check_pages(cohort, own, token.stdout.strip())
            health = run("cohortctl", "health", f"--ops={cohort.ops}",
                         *cohort.certificates.flags("viewer"))
            self.assertEqual(health.returncode, 0, health.stderr)
            cohort.drain()
            events = [json.loads(line) for line in
                      (cohort.dir / "audit.jsonl").read_text().splitlines()]
            drains = [event for event in events if event.get("verb") == "Drain"]
            self.assertEqual([event["event"] for event in drains], ["intent"])
            self.assertIn({"role"}, [{event.get("reason")} for event in events])

    def check_pages(self, cohort, own, token):
        url = f"https://{cohort.ops}"
        trust = ssl.create_default_context(cafile=own / "ca.crt")
        with self.assertRaises(urllib.error.HTTPError) as denied:
            urllib.request.urlopen(url + "/metrics", context=trust, timeout=10)
        self.assertEqual(denied.exception.code, 401)
        request = urllib.request.Request(
            url + "/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, context=trust, timeout=10) as page:
            metrics = page.read().decode()
        self.assertIn("cohort_tls_certificate_not_after_timestamp_seconds ",
                      metrics)
        self.assertIn('cohort_denied_calls_total{reason="role"}', metrics)
        # The plaintext of before, and the client's look at why it failed.
        self.assertRegex(
            metrics, r'cohort_tls_handshake_failures_total{port="grpc"} [1-9]')
        trust.load_cert_chain(own / "tls.crt", own / "tls.key")
        with urllib.request.urlopen(url + "/", context=trust,
                                    timeout=10) as page:
            self.assertEqual(page.status, 200)


def ended(peer):
    """Whether the server has closed the connection."""
    peer.settimeout(0.01)
    try:
        while peer.recv(1 << 16):
            pass
    except (TimeoutError, ssl.SSLWantReadError):
        return False
    except OSError:
        pass
    return True


class Strangers(unittest.TestCase):
    """Floods that cost much memory once HTTP/2 is spoken."""
    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4]) + bytes(5)
    PINGS = (bytes([0, 0, 8, 6]) + bytes(13)) * 10_000
    NUMBER = 30

    def test_get_nothing_but_a_handshake(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            cohort.start()
            host, port = cohort.address.rsplit(":", 1)
            trust = ssl.create_default_context(
                cafile=cohort.certificates.folder / "ca.crt")
            trust.check_hostname = False
            peers = []
            self.addCleanup(lambda: [peer.close() for peer in peers])
            for number in range(self.NUMBER):
                peer = socket.create_connection((host, int(port)))
                with contextlib.suppress(OSError):
                    if number % 3 == 1:
                        # Plaintext.
                        peer.sendall(self.PREFACE + self.PINGS)
                    elif number % 3 == 2:
                        # A handshake without a certificate.
                        peer = trust.wrap_socket(peer)
                        peer.sendall(self.PREFACE + self.PINGS)
                peers.append(peer)
            version = cohort.newest_checkpoint()
            cohort.await_checkpoint(version + 1)
            # The silent ones when their time for a handshake is over.
            cohort.wait_until(lambda: all(ended(peer) for peer in peers),
                              "the end of all strangers")
            cohort.drain()
            self.assertIn("TLS handshake failed", cohort.log())


class Errors(unittest.TestCase):
    def test_each_has_its_code_and_names_its_cause(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort, \
                Cohort(server_flags=["--epochs=1000"]) as plain:
            cohort.start_server()
            plain.start_server()
            (cohort.dir / "token").write_text("abc\n")
            operator = cohort.certificates.flags("operator")
            # gRPC's server ends some of these connections without a reason.
            for server, flags, code, cause in (
                    (cohort, Certificates(cohort.dir / "other").flags("operator"),
                     5, "another authority"),
                    (cohort, [], 5, "speaks TLS"),
                    (cohort, operator[2:], 4, "only clients with a certificate"),
                    (cohort, [*operator[2:], f"--token_file={cohort.dir}/token"],
                     4, "--viewer_tokens"),
                    (cohort, [*operator[:2], f"--tls_ca={cohort.dir}/missing"],
                     3, "--tls_ca: "),
                    (plain, operator, 5, "does not speak TLS")):
                done = run("cohortctl", "status", f"--server={server.address}",
                           "--timeout=10s", *flags)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(cause, done.stderr)
            doctor = run("cohortctl", "doctor", f"--server={cohort.address}",
                         "--timeout=10s")
            self.assertIn("the server speaks TLS", doctor.stdout)
            self.assertNotIn("something else than", doctor.stdout)
            doctor = cohort.ctl("doctor", role="viewer", code=1)
            self.assertIn("spiffe://cohort.local/cohort/demo/viewer",
                          doctor.stdout)
            # Worker 0 without certificates.
            Cohort.start_worker(cohort, 0)
            cohort.await_log("worker0", "the server speaks TLS")


class RunWithTls(unittest.TestCase):
    def test_one_command_makes_everything(self):
        with Cohort() as cohort:
            certificates = cohort.dir / "certs"
            trained = run(
                "cohortctl", "run", "--workers=2", f"--tls={certificates}",
                "--model=smooth", "--dataset=synthetic", "--batch_size=32",
                "--epochs=1", f"--results_dir={cohort.dir}/results",
                # An operator's own, which the processes must not inherit.
                environment={"COHORT_TLS_CERT": "/missing",
                             "COHORT_TLS_KEY": "/missing"})
            self.assertEqual(trained.returncode, 0, trained.stderr)
            self.check_hint(trained.stderr, certificates)
            shown = run("cohortctl", "certs", "show",
                        certificates / "worker-1" / "tls.crt")
            self.assertIn("/cohort/local/worker/1", shown.stdout)

    def check_hint(self, said, certificates):
        """One line to paste, with the address and whole paths."""
        own = certificates.absolute() / "operator"
        self.assertRegex(
            said, r"to look at it: export COHORT_SERVER=127\.0\.0\.1:\d+ "
            rf"COHORT_TLS_CERT={own}/tls.crt COHORT_TLS_KEY={own}/tls.key "
            rf"COHORT_TLS_CA={own}/ca.crt; \S*cohortctl watch\n")
        self.assertIn(f"--viewer_tokens={certificates.absolute()}"
                      "/viewer_tokens", said)


if __name__ == "__main__":
    unittest.main()
