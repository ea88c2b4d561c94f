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
        super().__init__(**options)
        self.certificates = Certificates(self.dir / "pki")
        self.certificates.issue("worker/0", "worker/1")
        self.server_flags += [
            *self.certificates.flags("server-0"),
            f"--checkpoint_dir={self.checkpoints}", "--checkpoint_every=5",
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

    def ctl(self, role, *words):
        return run("cohortctl", *words, f"--server={self.address}",
                   *self.certificates.flags(role))

    def status(self):
        answer = self.ctl("viewer", "status", "--json")
        return json.loads(answer.stdout) if answer.returncode == 0 else None


def plain_digest(epochs):
    """The weights of the same run without encryption or disturbance."""
    with Cohort(server_flags=[f"--epochs={epochs}"]) as cohort:
        cohort.start()
        assert cohort.finish() == 0, cohort.log()
        return cohort.model_digest()


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
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), plain_digest(epochs))
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
                self.assertEqual(cohort.ctl(role, "status").returncode, 0)
            kill(cohort.workers[1])
            cohort.start_worker(1)
            cohort.await_log("server", "a replacement joined")
            self.install(cohort, new.folder, "ca.crt")
            self.assertEqual(cohort.ctl("operator", "status").returncode, 0)
            # gRPC takes the content within another second.
            cohort.wait_until(
                lambda: cohort.ctl("stolen", "status",
                                   "--timeout=5s").returncode != 0,
                "the old authority to be refused")
            self.assertEqual(
                cohort.ctl("operator", "run", "drain").returncode, 0)
            self.assertEqual(cohort.finish(), 0, cohort.log())


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
            kill(cohort.server)
            cohort.start_server("--resume")
            version = cohort.newest_checkpoint()
            cohort.wait_until(lambda: cohort.newest_checkpoint() > version,
                              "both workers to come back")

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
        answer = cohort.ctl("operator", "status", "--timeout=20s")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        if not with_worker:
            return
        version = cohort.newest_checkpoint()
        kill(cohort.workers[1])
        cohort.start_worker(1)
        cohort.wait_until(lambda: cohort.newest_checkpoint() > version,
                          "training to go on")

    def await_count(self, cohort, process, text, count):
        cohort.wait_until(lambda: cohort.log(process).count(text) >= count,
                          f"{process} to say '{text}' {count} times")


class Rights(unittest.TestCase):
    def test_roles_over_real_connections(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            token = run("cohortctl", "certs", "token", "--name=ana",
                        f"--tokens={cohort.dir}/tokens")
            (cohort.dir / "token").write_text(token.stdout)
            cohort.start("--ops_listen=127.0.0.1:0",
                         f"--ops_address_file={cohort.dir}/ops",
                         f"--viewer_tokens={cohort.dir}/tokens")
            self.assertEqual(cohort.ctl("operator", "status").returncode, 0)
            # A viewer looks and does not touch.
            self.assertEqual(cohort.ctl("viewer", "status").returncode, 0)
            drain = cohort.ctl("viewer", "run", "drain")
            self.assertEqual(drain.returncode, 4, drain.stderr)
            self.assertIn("may not call /cohort.v1.Admin/Drain", drain.stderr)
            # Neither does a token, and a worker does not even look.
            own = cohort.certificates.folder / "viewer"
            by_token = [f"--server={cohort.address}", f"--tls_ca={own}/ca.crt",
                        f"--token_file={cohort.dir}/token"]
            self.assertEqual(run("cohortctl", "status", *by_token).returncode,
                             0)
            self.assertEqual(
                run("cohortctl", "run", "drain", *by_token).returncode, 4)
            self.assertEqual(cohort.ctl("worker-0", "status").returncode, 4)
            # Plaintext to TLS.
            plain = run("cohortctl", "status", f"--server={cohort.address}",
                        "--timeout=5s")
            self.assertEqual(plain.returncode, 5)
            self.assertIn("the server speaks TLS", plain.stderr)
            self.check_pages(cohort, own, token.stdout.strip())
            health = run("cohortctl", "health",
                         f"--ops={(cohort.dir / 'ops').read_text().strip()}",
                         *cohort.certificates.flags("viewer"))
            self.assertEqual(health.returncode, 0, health.stderr)
            self.assertEqual(
                cohort.ctl("operator", "run", "drain").returncode, 0)
            self.assertEqual(cohort.finish(), 0, cohort.log())
            events = [json.loads(line) for line in
                      (cohort.dir / "audit.jsonl").read_text().splitlines()]
            drains = [event for event in events if event.get("verb") == "Drain"]
            self.assertEqual([event["event"] for event in drains], ["intent"])
            self.assertIn({"role"}, [{event.get("reason")} for event in events])

    def check_pages(self, cohort, own, token):
        url = f"https://{(cohort.dir / 'ops').read_text().strip()}"
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
            cohort.wait_until(lambda: cohort.newest_checkpoint() > version,
                              "training to go on")
            # The silent ones when their time for a handshake is over.
            cohort.wait_until(lambda: all(ended(peer) for peer in peers),
                              "the end of all strangers")
            self.assertEqual(cohort.ctl("operator", "run", "drain").returncode,
                             0)
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertIn("TLS handshake failed", cohort.log())


class Errors(unittest.TestCase):
    def test_each_says_what_to_do(self):
        with EncryptedCohort(server_flags=["--epochs=1000"]) as cohort:
            cohort.start_server()
            other = Certificates(cohort.dir / "other")
            target = f"--server={cohort.address}"
            foreign = run("cohortctl", "status", target,
                          *other.flags("operator"), "--timeout=10s")
            self.assertEqual(foreign.returncode, 5)
            self.assertIn("another authority", foreign.stderr)
            self.check_closed(cohort, target)
            # Worker 0 without certificates.
            Cohort.start_worker(cohort, 0)
            cohort.await_log("worker0", "the server speaks TLS")
            self.assertIn("this worker tries again until", cohort.log("worker0"))
            doctor = cohort.ctl("viewer", "doctor")
            self.assertIn("encrypted, as spiffe://cohort.local/cohort/demo/"
                          "viewer, own certificate ends in 364 days",
                          doctor.stdout)
            unknown = [*cohort.certificates.flags("operator")[:2],
                       f"--tls_ca={cohort.dir}/missing"]
            missing = run("cohortctl", "status", target, *unknown)
            self.assertEqual(missing.returncode, 3)
            self.assertIn("--tls_ca: ", missing.stderr)
            with Cohort(server_flags=["--epochs=1000"]) as plain:
                plain.start_server()
                answer = run("cohortctl", "status",
                             f"--server={plain.address}", "--timeout=10s",
                             *cohort.certificates.flags("operator"))
                self.assertEqual(answer.returncode, 5)
                self.assertIn("does not speak TLS", answer.stderr)


    def check_closed(self, cohort, target):
        """gRPC's server ends these connections without a reason."""
        own = cohort.certificates.folder / "operator"
        plain = run("cohortctl", "status", target, "--timeout=10s")
        self.assertEqual(plain.returncode, 5)
        self.assertIn("the server speaks TLS and this side does not",
                      plain.stderr)
        bare = run("cohortctl", "status", target, f"--tls_ca={own}/ca.crt",
                   "--timeout=10s")
        self.assertEqual(bare.returncode, 4, bare.stderr)
        self.assertIn("takes only clients with a certificate", bare.stderr)
        (cohort.dir / "token").write_text("abc\n")
        token = run("cohortctl", "status", target, f"--tls_ca={own}/ca.crt",
                    f"--token_file={cohort.dir}/token", "--timeout=10s")
        self.assertEqual(token.returncode, 4, token.stderr)
        self.assertIn("takes tokens only with --viewer_tokens", token.stderr)
        doctor = run("cohortctl", "doctor", target, "--timeout=10s")
        self.assertIn("the server speaks TLS", doctor.stdout)
        self.assertNotIn("something else than", doctor.stdout)


class RunWithTls(unittest.TestCase):
    def test_one_command_makes_everything(self):
        with Cohort() as cohort:
            certificates = cohort.dir / "certs"
            trained = run(
                "cohortctl", "run", "--workers=2", f"--tls={certificates}",
                "--model=smooth", "--dataset=synthetic", "--batch_size=32",
                "--epochs=1", f"--results_dir={cohort.dir}/results",
                timeout_s=300,
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
