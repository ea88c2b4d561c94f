#!/usr/bin/env python3
"""deploy/compose.yaml, as a tool would parse it."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import manifests
from manifests import DEPLOY, ROOT

COMPOSE = DEPLOY / "compose.yaml"
ENCRYPTED = DEPLOY / "compose.tls.yaml"
SAMPLE = DEPLOY / "compose.env.example"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
PROGRAMS = ("server", "worker")
SHARDS = ("shard-1", "shard-2")
# What SHARDS.md and the sample say for the profile `shards`.
ADDRESSES = "shard-[1-2]:7070"
# The mount of Prometheus's configuration in the encrypted run.
CONFIGURATION = "./prometheus/compose.tls.yml:/etc/prometheus/compose.yml:ro"
CTL = pathlib.Path(os.environ.get("COHORT_BIN_DIR", "none")) / "cohortctl"


def why_no_certificates() -> str:
    return "" if CTL.exists() else "no cohortctl built in COHORT_BIN_DIR"


@unittest.skipIf(manifests.yaml is None, manifests.NO_YAML)
class ComposeTest(unittest.TestCase):

    def setUp(self):
        self.text = COMPOSE.read_text(encoding="utf-8")
        # With no variable set.
        self.compose = manifests.yaml.safe_load(
            VARIABLE.sub(lambda match: match.group(2), self.text))
        self.services = self.compose["services"]

    def test_variables_are_flags_of_the_program(self):
        for program in PROGRAMS:
            self.assertEqual(
                set(self.services[program]["environment"]) -
                manifests.variables_of(program), set())
        for shard in SHARDS:
            self.assertEqual(set(self.services[shard]["environment"]) -
                             manifests.variables_of("shard"), set())

    def test_data_shards_are_where_the_server_is_told(self):
        self.assertEqual(ADDRESSES, "shard-[1-{}]:{}".format(
            len(SHARDS), self.services["shard-1"]["environment"][
                "COHORT_LISTEN"].rpartition(":")[2]))
        self.assertIn(f"#COHORT_SHARD_ADDRESSES={ADDRESSES}\n",
                      SAMPLE.read_text(encoding="utf-8"))
        for page in (COMPOSE, DEPLOY / "SHARDS.md"):
            self.assertIn(f"COHORT_SHARD_ADDRESSES='{ADDRESSES}'",
                          page.read_text(encoding="utf-8"))
        # Not set without a value outside: an empty one would not reach all
        # tools as such.
        server = self.services["server"]["environment"]
        self.assertIsNone(server["COHORT_SHARD_ADDRESSES"])
        for shard in SHARDS:
            service = self.services[shard]
            self.assertEqual(service["environment"]["COHORT_DATA_SHARD"],
                             "true")
            self.assertEqual(service["environment"]["COHORT_WORKERS"],
                             server["COHORT_WORKERS"])
            self.assertEqual(service["restart"],
                             self.services["server"]["restart"])
            # The state is the server's alone.
            self.assertNotIn("volumes", service)

    def test_ports_are_those_of_this_machine_alone(self):
        for name, service in self.services.items():
            for port in service.get("ports", ()):
                self.assertRegex(port, r"^127\.0\.0\.1:(\d+):\1$", name)

    def test_services_are_confined(self):
        for name, service in self.services.items():
            with self.subTest(service=name):
                self.assertIs(service["read_only"], True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"],
                                 ["no-new-privileges:true"])
                self.assertNotIn("privileged", service)

    def test_images_have_versions(self):
        version, = re.findall(
            r"^project\(cohort VERSION (\S+)",
            (DEPLOY.parent / "CMakeLists.txt").read_text(encoding="utf-8"),
            re.M)
        for name, service in self.services.items():
            self.assertRegex(service["image"], r":v?\d+\.\d+", name)
        for program in PROGRAMS:
            self.assertEqual(self.services[program]["image"],
                             f"cohort-{program}:{version}")
        for shard in SHARDS:
            self.assertEqual(self.services[shard]["image"],
                             self.services["server"]["image"])

    def test_nobody_waits_for_anybody(self):
        for service in self.services.values():
            self.assertNotIn("depends_on", service)

    def test_monitoring_and_shards_are_a_matter_of_choice(self):
        self.assertEqual(
            {name: service.get("profiles") for name, service
             in self.services.items()},
            {"server": None, "worker": None, "shard-1": ["shards"],
             "shard-2": ["shards"], "script": ["python"], "prometheus": ["monitoring"],
             "grafana": ["monitoring"]})

    def test_volumes_are_declared_and_files_are_there(self):
        for service in self.services.values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DEPLOY / source).is_dir(), source)
                    self.assertTrue(volume.endswith(":ro"), volume)
                else:
                    self.assertIn(source, self.compose["volumes"])

    def test_server_and_workers_share_a_folder_of_sockets(self):
        folder = self.services["server"]["environment"]["COHORT_LOCAL_DIR"]
        for program in PROGRAMS:
            self.assertIn(f"sockets:{folder}",
                          self.services[program]["volumes"])
            image = (DEPLOY / f"containers/{program}.Containerfile").read_text(
                encoding="utf-8")
            # A new volume takes its owner from the image.
            self.assertRegex(image,
                             rf"install -d -o 10001 -g 10001 .*{folder}\n")

    def test_prometheus_finds_the_services(self):
        config, = manifests.load(DEPLOY / "prometheus/compose.yml")
        jobs = {job["job_name"]: job for job in config["scrape_configs"]}
        server, = jobs["cohort-server"]["static_configs"]
        self.assertEqual(server["targets"], ["server:7071"])
        self.assertEqual(
            self.services["server"]["environment"]["COHORT_OPS_LISTEN"],
            "0.0.0.0:7071")
        worker, = jobs["cohort-worker"]["dns_sd_configs"]
        self.assertEqual((worker["names"], worker["port"]), (["worker", "script"], 7072))
        self.assertEqual(
            self.services["worker"]["environment"]["COHORT_OPS_LISTEN"],
            "0.0.0.0:7072")

    def test_prometheus_reads_that_file_and_serves_the_runbook(self):
        command = self.services["prometheus"]["command"]
        volumes = self.services["prometheus"]["volumes"]
        self.assertIn("./prometheus:/etc/prometheus:ro", volumes)
        self.assertIn("--config.file=/etc/prometheus/compose.yml", command)
        self.assertIn("--web.user-assets=/etc/prometheus", command)

    def test_as_many_workers_start_as_the_server_waits_for(self):
        self.assertEqual(
            self.services["worker"]["deploy"]["replicas"],
            self.services["server"]["environment"]["COHORT_WORKERS"])

    def test_a_script_takes_the_place_of_the_workers(self):
        script, worker = self.services["script"], self.services["worker"]
        given = {name for name in script["environment"]
                 if name.startswith("COHORT_")}
        self.assertEqual(given - manifests.variables_of("worker"), set())
        self.assertEqual(script["deploy"], worker["deploy"])
        self.assertEqual(script["restart"], worker["restart"])
        for name in ("SERVER", "OPS_LISTEN", "STOPPED_EXIT_CODE"):
            self.assertEqual(script["environment"][f"COHORT_{name}"],
                             worker["environment"][f"COHORT_{name}"])
        # torch.compile loads libraries from there.
        self.assertEqual(script["tmpfs"], ["/tmp:exec"])
        self.assertIn("shm_size", script)
        folder, = (volume.split(":")[0] for volume in script["volumes"]
                   if volume.endswith(":/script:ro"))
        self.assertTrue((DEPLOY / folder / "train.py").is_file())

    def test_the_server_leaves_to_a_script_what_it_states(self):
        given = self.services["server"]["environment"]
        self.assertEqual(manifests.stated_by_scripts() &
                         {name for name, value in given.items()
                          if value is not None}, set())

    def test_the_sample_has_every_variable(self):
        sample = dict(line.split("=", 1) for line in
                      SAMPLE.read_text(encoding="utf-8").splitlines()
                      if "=" in line and not line.startswith("#"))
        self.assertEqual(sample, dict(VARIABLE.findall(self.text)))

    def test_what_is_not_set_is_as_the_programs_have_it(self):
        tables = "".join((ROOT / page).read_text(encoding="utf-8")
                         for page in ("server/FLAGS.md", "worker/FLAGS.md"))
        own = {"COHORT_TAG", "COHORT_WORKERS", "COHORT_CHECKPOINT_EVERY",
               "SCRIPT_DIR"}
        for name, default in VARIABLE.findall(self.text):
            if name in own:
                continue
            flag = name.removeprefix("COHORT_").lower()
            self.assertIn(f"| `--{flag}` | `{default}` |", tables)


@unittest.skipIf(manifests.yaml is None, manifests.NO_YAML)
class EncryptedTest(unittest.TestCase):
    """compose.tls.yaml, which a tool merges into compose.yaml."""

    def setUp(self):
        self.text = ENCRYPTED.read_text(encoding="utf-8")
        self.services = manifests.yaml.safe_load(
            VARIABLE.sub("CERTS", self.text))["services"]
        self.plain = manifests.yaml.safe_load(
            COMPOSE.read_text(encoding="utf-8"))["services"]

    def test_variables_and_flags_are_those_of_the_program(self):
        for program in PROGRAMS:
            service = self.services[program]
            given = set(service["environment"]) | {
                f"COHORT_{flag[2:].partition('=')[0].upper()}"
                for flag in service.get("command", ())}
            self.assertEqual(given - manifests.variables_of(program), set())
            self.assertEqual(service["environment"]["COHORT_INSECURE"], "false")

    def test_data_shards_have_the_servers_certificate(self):
        server, = (volume for volume in self.services["server"]["volumes"]
                   if "/etc/cohort/tls" in volume)
        for shard in SHARDS:
            self.assertEqual(self.services[shard]["volumes"], [server])
            self.assertEqual(self.services[shard]["environment"], {
                **self.services["worker"]["environment"]})

    def test_every_file_is_in_a_folder_that_is_mounted_for_reading(self):
        for name, service in self.services.items():
            folders = {}
            for volume in service["volumes"]:
                source, target, mode = volume.split(":")
                self.assertEqual(mode, "ro")
                if volume != CONFIGURATION:
                    folders[target] = source
            paths = re.findall(r"/etc/cohort/[\w/.]+", str(service) + (
                DEPLOY / "prometheus/compose.tls.yml").read_text(
                    encoding="utf-8") * (name == "prometheus"))
            files = {path for path in paths if path not in folders}
            self.assertEqual({str(pathlib.PurePath(file).parent)
                              for file in files}, set(folders), name)
            # The authority's key is in none of them.
            for source in folders.values():
                self.assertIn(source, {f"CERTS/{role}" for role in (
                    "server-0", "worker-any", "operator", "viewer")})

    def test_prometheus_has_another_configuration_in_the_same_place(self):
        self.assertIn(CONFIGURATION, self.services["prometheus"]["volumes"])
        self.assertIn(f"--config.file={CONFIGURATION.split(':')[1]}",
                      self.plain["prometheus"]["command"])
        self.assertTrue((DEPLOY / CONFIGURATION.split(":")[0]).is_file())

    def test_lists_that_tools_would_join_are_not_replaced(self):
        for name, service in self.services.items():
            for key, value in service.items():
                if isinstance(value, list) and key != "volumes":
                    self.assertNotIn(key, self.plain[name], name)

    @unittest.skipIf(why_no_certificates(), why_no_certificates())
    def test_certs_init_makes_the_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([CTL, "certs", "init", "--run=local",
                            f"--dir={folder}/certs"], check=True,
                           capture_output=True, timeout=60)
            for source, _ in re.findall(r"\}/([\w-]+):(/\S+):ro", self.text):
                for file in ("tls.crt", "tls.key", "ca.crt"):
                    self.assertTrue((pathlib.Path(folder) / "certs" / source /
                                     file).is_file())


if __name__ == "__main__":
    unittest.main()
