"""A cohort with its operations ports, and a real Prometheus that scrapes it."""

import json
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse

from processes import Cohort, get, until
from tls_files import Certificates

# The folder of the module that reads the files of deploy/.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "deploy"))
import monitoring_files  # noqa: E402

# The rules' durations are divided by this: a second stands for a minute.
SPEED = 60
SCRAPE_MS = 250

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
RULE_DURATION = re.compile(
    r"((?:for|interval): |\[|\boffset )(\d+)(ms|s|m|h)\b")
SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')


def has_prometheus():
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


def samples(page):
    """Yields (name, labels, value) of a page in Prometheus' text format."""
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            yield name, dict(LABEL.findall(labels or "")), float(value)


class MonitoredCohort(Cohort):
    """Every process has an operations port on a free port."""

    # Of every process, unless the cohort is not encrypted.
    certificates = None

    def encrypt(self):
        """Gives every process a certificate; call it before the start."""
        self.certificates = Certificates(self.dir / "pki")
        self.server_flags += self.certificates.flags("server-0")
        self.worker_flags += self.certificates.flags("worker-any")

    def viewer_context(self):
        """What a viewer's HTTPS needs; None for HTTP."""
        if self.certificates is None:
            return None
        own = self.certificates.folder / "viewer"
        context = ssl.create_default_context(cafile=own / "ca.crt")
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
        return context

    @property
    def scheme(self):
        return "http" if self.certificates is None else "https"

    def start_worker(self, rank, *flags):
        return super().start_worker(rank, "--ops_listen=127.0.0.1:0", *flags)

    def worker_ops(self, rank):
        """Returns the address of the newest worker of that rank."""
        pattern = re.compile(r"operations port: https?://([\d.:]+)")
        self.wait_until(lambda: pattern.search(self.log(f"worker{rank}")),
                        f"worker {rank}'s operations port")
        return pattern.findall(self.log(f"worker{rank}"))[-1]

    def pages(self):
        """Returns what each process exports: the server's, then workers'."""
        ports = [self.ops, *map(self.worker_ops, self.workers)]
        return [get(f"{self.scheme}://{port}/metrics",
                    context=self.viewer_context()) for port in ports]


def faster(rules):
    """Returns the text of a rule file with its durations shortened."""
    def shorten(match):
        before, number, unit = match.groups()
        return f"{before}{int(number) * UNITS_MS[unit] // SPEED}ms"
    return RULE_DURATION.sub(shorten, rules)


class Prometheus:
    """Prometheus with the project's rules, faster, over a running cohort."""

    def __init__(self, cohort):
        self._cohort = cohort
        self._folder = cohort.dir / "prometheus"
        self._folder.mkdir()
        self._log = self._folder / "log"
        self._process = None
        self._address = None

    def __enter__(self):
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={self._configuration()}",
                 f"--storage.tsdb.path={self._folder / 'data'}",
                 "--web.listen-address=127.0.0.1:0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.wait_until(self._is_ready, "Prometheus to be ready")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _configuration(self):
        rules = []
        for name in monitoring_files.RULE_FILES:
            source = monitoring_files.PROMETHEUS / "rules" / name
            (self._folder / name).write_text(
                faster(source.read_text(encoding="utf-8")), encoding="utf-8")
            rules.append(name)
        interval = f"{SCRAPE_MS}ms"
        path = self._folder / "prometheus.yml"
        path.write_text(json.dumps({  # JSON is YAML, too.
            "global": {"scrape_interval": interval, "scrape_timeout": interval,
                       "evaluation_interval": interval},
            "rule_files": rules,
            "scrape_configs": [
                self._job("cohort-server", [self._cohort.ops]),
                self._job("cohort-worker",
                          [*map(self._cohort.worker_ops,
                                self._cohort.workers)])]}), encoding="utf-8")
        return path

    def _job(self, name, targets):
        job = {"job_name": name, "static_configs": [{"targets": targets}]}
        if self._cohort.certificates is not None:
            own = self._cohort.certificates.folder / "viewer"
            job["scheme"] = "https"
            job["tls_config"] = {"ca_file": f"{own}/ca.crt",
                                 "cert_file": f"{own}/tls.crt",
                                 "key_file": f"{own}/tls.key"}
        return job

    def _is_ready(self):
        # Port 0: only the log shows the real port.
        found = re.search(r'msg="Listening on" address=([\d.:]+)', self.log())
        if not found:
            return False
        self._address = found.group(1)
        try:
            return get(f"http://{self._address}/-/ready")
        except urllib.error.HTTPError:
            return False

    def log(self):
        return self._log.read_text(errors="replace")

    def wait_until(self, condition, what):
        """Polls, and returns what the condition returned."""
        def logs():
            return f"{self.log()}\n{self._cohort.log()}"

        def there():
            if self._process.poll() is not None:
                raise AssertionError(f"Prometheus ended:\n{logs()}")
            return condition()
        return until(there, what, logs)

    def api(self, path, **parameters):
        """Returns the data of an answer of the HTTP API."""
        url = (f"http://{self._address}/api/v1/{path}?"
               + urllib.parse.urlencode(parameters))
        try:
            return json.loads(get(url))["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{url}: {error.read().decode()}") from error

    def query(self, expression):
        """Returns [(labels, value)] of an instant query."""
        return [(series["metric"], float(series["value"][1]))
                for series in self.api("query", query=expression)["result"]]

    def value(self, expression):
        """Returns the value of a query for one series, None without one."""
        result = self.query(expression)
        return result[0][1] if result else None

    def alert_state(self, name):
        """Returns pending or firing, None while the alert is silent."""
        for alert in self.api("alerts")["alerts"]:
            if alert["labels"]["alertname"] == name:
                return alert["state"]
        return None

    def rules(self):
        return [rule for group in self.api("rules")["groups"]
                for rule in group["rules"]]
