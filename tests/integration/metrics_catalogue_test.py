"""The page of all metrics, server/metrics/METRICS.md: what running processes
export. `metrics_catalogue_test.py --write` writes it."""

import pathlib
import re
import sys
import time
import unittest

import processes
from monitored import samples
from prometheus_test import monitored_segmentation
from shard_ops_test import Watched

PAGE = (pathlib.Path(__file__).resolve().parents[2] /
        "server/metrics/METRICS.md")
HEADER = """# Metrics

What `/metrics` of the operations ports exports: of the server (S), a data shard (D) and a `cohort-worker` (W). This page is made from running processes
by `tests/integration/metrics_catalogue_test.py --write`; the test compares the two.

| name (labels) | type | of | meaning |
|---|---|---|---|
"""
# Labels whose values are a fixed list, all exported from the start.
CLOSED = frozenset({"action", "kind", "method", "phase", "reason", "result",
                    "split", "state", "queue", "encoding", "transport"})
SUFFIX = re.compile(r"_(bucket|sum|count)$")


class Catalogue:
    """All families that were seen, by name."""

    def __init__(self):
        self.families = {}

    def add(self, owner, page):
        for word, name, text in re.findall(r"^# (HELP|TYPE) (\S+) (.*)$", page,
                                           re.M):
            family = self.families.setdefault(
                name, {"owners": set(), "labels": {}})
            family["owners"].add(owner)
            family[word] = text
        for name, labels, _ in samples(page):
            family = self.families.get(name) or self.families[
                SUFFIX.sub("", name)]
            for label, value in labels.items():
                if label != "le":
                    family["labels"].setdefault(label, set()).add(value)

    def page(self):
        return HEADER + "".join(map(self._row, sorted(self.families)))

    def _row(self, name):
        family = self.families[name]
        labels = ", ".join(
            label + ("=" + ", ".join(sorted(values)) if label in CLOSED else "")
            for label, values in sorted(family["labels"].items()))
        owners = "".join(owner for owner in "SDW" if owner in family["owners"])
        return (f"| `{name}`{f' ({labels})' if labels else ''} | "
                f"{family['TYPE']} | {owners} | {family['HELP']} |\n")


def gathered(wanted=None):
    """The page of what a server with workers, and one with a data shard,
    export; of all that they do in a while, or until it is the one wanted."""
    catalogue = Catalogue()

    def gather(source, while_s):
        end = time.monotonic() + while_s
        while time.monotonic() < end and catalogue.page() != wanted:
            for owner, page in source():
                catalogue.add(owner, page)
            time.sleep(0.2)

    with Watched(2) as shards:
        shards.start()
        shards.wait_until(lambda: shards.newest_checkpoint() >= 4, "steps")
        gather(lambda: (("S", shards.page(0)), ("D", shards.page(1))), 5)
    with monitored_segmentation() as cohort:
        cohort.start()
        gather(lambda: zip("SWW", cohort.pages()),
               20 if wanted is None else processes.PATIENCE_S)
    return catalogue.page()


class MetricsPage(unittest.TestCase):

    def test_the_page_is_what_processes_export(self):
        self.maxDiff = None
        page = PAGE.read_text(encoding="utf-8")
        self.assertEqual(page, gathered(page))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(gathered(), encoding="utf-8")
    else:
        unittest.main(verbosity=2)
