#!/usr/bin/env python3
"""Checks what clients saw of a run against a model of the protocol.

    history_check.py worker0.jsonl worker1.jsonl ...

The files are those of cohort-worker --exchange_log, all of one run on one
machine (the times of different files are compared). Prints one line a
violation and exits with 1 if there is any.

The model. A *start* of the server is identified by the upper half of the
incarnations that it gives out. Within a start:

  once       all answers to a push agree; of the attempts of an assignment at
             most one is applied; no sample of an epoch is applied twice
  versions   a version has one content: readers get the same checksums. It is
             made of exactly one push (async, bounded), or of the pushes of
             one attempt of one step, one a member (sync), or of the first K of
             them. A version that no known push made must be explained by a push
             whose answer was lost
  verdicts   a push that is applied under sync is in the version after the one
             that it read; otherwise its staleness is the number of versions
             between
  order      a rank never goes back; a version is not read before all its pushes
             were sent; a read of the newest version that begins after an
             answer is not older than that answer's version

A later start continues at the oldest version that it reported.
Up to there, the versions of both starts have the same content and count
together; what the earlier start did after that is void.
"""

import bisect
import collections
import dataclasses
import json
import pathlib
import sys

APPLIED = ("applied", "damped")
# Upper half of an incarnation: the number of the server's start.
START_BITS = 32


@dataclasses.dataclass(frozen=True)
class Key:
    """A push, as the server tells pushes apart."""
    start: int
    rank: int
    sequence: int
    attempt: int

    def __str__(self):
        return (f"start {self.start}, rank {self.rank}, assignment "
                f"{self.sequence}, attempt {self.attempt}")


@dataclasses.dataclass
class Push:
    """What is known of a push; `sent_us` is the first time it was sent."""
    key: Key
    assignment: dict | None = None
    sent_us: int | None = None
    read: int | None = None
    answers: list = dataclasses.field(default_factory=list)

    @property
    def verdict(self):
        return self.answers[0]["verdict"] if self.answers else None

    @property
    def version(self):
        return self.answers[0]["version"] if self.answers else None

    @property
    def applied(self):
        return self.verdict in APPLIED

    @property
    def lost(self):
        """Sent, and its answer is not known."""
        return self.sent_us is not None and not self.answers

    @property
    def synchronous(self):
        return bool(self.assignment and self.assignment["members"])


def load(paths):
    """The events of several files, in the order of their ends."""
    events = []
    for path in paths:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                # A killed process may leave half a line; the next process
                # continues after it.
                if number < len(lines) and '{"event"' in line[1:]:
                    events.append(json.loads(line[line.rindex('{"event"'):]))
    return sorted(events, key=lambda event: event["end_us"])


class History:
    """The events of a run, and what they say about pushes and versions."""

    def __init__(self, events, pushes_min=None, staleness_max=None):
        self.events = events
        self.pushes_min = pushes_min
        self.staleness_max = staleness_max
        self.problems = []
        self.pushes = {}
        for event in events:
            self._take(event)
        self.bases = self._bases()
        # By step: the pushes that were sent for it.
        self.sent = collections.defaultdict(list)
        for push in self.pushes.values():
            if push.sent_us is not None:
                self.sent[push.key.start, push.read,
                          push.key.attempt].append(push)

    @staticmethod
    def start_of(event):
        return event["incarnation"] >> START_BITS

    def _take(self, event):
        if "error" in event or "sequence" not in event:
            return
        key = Key(self.start_of(event), event["rank"], event["sequence"],
                  event["attempt"])
        push = self.pushes.setdefault(key, Push(key))
        if event["event"] == "assignment":
            push.assignment = event
        elif event["event"] == "push":
            if push.sent_us is None:
                push.sent_us = event["begin_us"]
                push.read = event["version"]
        elif event["event"] == "verdict":
            push.answers.append(event)

    def _bases(self):
        """By start: the version that it continued at, which is the oldest
        that it reported."""
        bases = {}
        for event in self.events:
            if "error" in event or "version" not in event or \
                    event["event"] == "push":
                continue
            start, version = self.start_of(event), event["version"]
            bases[start] = min(bases.get(start, version), version)
        return bases

    def void_after(self, start):
        """The last version of a start that later ones continue; None: all."""
        later = [base for other, base in self.bases.items() if other > start]
        return min(later, default=None)

    def lasts(self, start, version):
        limit = self.void_after(start)
        return limit is None or version <= limit

    def share(self, one, other, version):
        """Whether two starts have this version together."""
        first, last = sorted((one, other))
        return all(version <= base for start, base in self.bases.items()
                   if first < start <= last)

    def say(self, text):
        self.problems.append(text)

    def check(self):
        """All violations, as sentences."""
        self._check_answers()
        self._check_samples()
        self._check_content()
        for start in sorted(self.bases):
            self._check_versions(start)
            self._check_gaps(start)
        self._check_order()
        return self.problems

    # ---- once

    def _check_answers(self):
        applied = collections.defaultdict(list)
        for push in self.pushes.values():
            told = {(answer["verdict"], answer["version"])
                    for answer in push.answers}
            if len(told) > 1:
                self.say(f"{push.key}: got different answers: "
                         f"{sorted(told)}")
            if push.answers and push.sent_us is None:
                self.say(f"{push.key}: answered, but never sent")
            if push.applied:
                applied[push.key.start, push.key.rank,
                        push.key.sequence].append(push)
        for pushes in applied.values():
            if len(pushes) > 1:
                self.say(f"{pushes[0].key}: applied at "
                         f"{' and '.join(str(p.version) for p in pushes)}")

    def _check_samples(self):
        """Ranges of one epoch, over the starts that count together."""
        ranges = collections.defaultdict(list)
        for push in self.pushes.values():
            if push.applied and push.assignment is not None and \
                    self.lasts(push.key.start, push.version):
                begin, end = push.assignment["range"]
                if begin < end:
                    ranges[push.assignment["epoch"]].append(
                        (begin, end, push.key))
        for epoch, found in ranges.items():
            found.sort(key=lambda one: one[:2])
            for (_, end, first), (begin, _, second) in zip(found, found[1:]):
                if begin < end:
                    self.say(f"epoch {epoch}: sample {begin} is applied twice: "
                             f"{first}; {second}")

    # ---- versions

    def _check_content(self):
        """Readers of a version get the same bits."""
        seen = {}
        for event in self.events:
            if "error" in event or not any(event.get("weights", ())):
                continue
            start, version = self.start_of(event), event["version"]
            average = event.get("statistics") == "average"
            for partition, checksum in enumerate(event["weights"]):
                if not checksum:
                    continue
                for other in self.bases:
                    if not self.share(start, other, version):
                        continue
                    known = seen.get((other, version, average, partition))
                    if known is not None and known != checksum:
                        self.say(f"version {version} of start {start}: "
                                 f"partition {partition} is {known} and "
                                 f"{checksum}")
                seen[start, version, average, partition] = checksum

    def _check_versions(self, start):
        made = collections.defaultdict(list)
        for push in self.pushes.values():
            if push.key.start == start and push.applied:
                made[push.version].append(push)
        for version, pushes in made.items():
            for push in pushes:
                self._check_verdict(push)
            if any(push.synchronous for push in pushes):
                self._check_step(version, pushes)
            elif len(pushes) > 1:
                self.say(f"version {version} is made of {len(pushes)} pushes: "
                         f"{'; '.join(str(p.key) for p in pushes)}")

    def _check_verdict(self, push):
        if push.read is None:
            return
        age = push.version - 1 - push.read
        if push.synchronous and age != 0:
            self.say(f"{push.key}: read version {push.read}, but is applied at "
                     f"{push.version}")
        if age < 0 or age != push.answers[0]["staleness"]:
            self.say(f"{push.key}: read version {push.read} and is applied at "
                     f"{push.version}, but the answer says "
                     f"{push.answers[0]['staleness']} versions between")
        if self.staleness_max is not None and age > self.staleness_max:
            self.say(f"{push.key}: applied {age} versions late, want at most "
                     f"{self.staleness_max}")

    def _check_step(self, version, pushes):
        """The pushes of a version are those of one attempt of one step."""
        first = pushes[0]
        attempt = first.key.attempt
        ranks = [push.key.rank for push in pushes]
        if len(set(ranks)) != len(ranks):
            self.say(f"version {version}: ranks {sorted(ranks)} are in it, "
                     "one more than once")
        members = set(first.assignment["members"])
        for push in pushes:
            if push.key.attempt != attempt or not push.synchronous or \
                    set(push.assignment["members"]) != members:
                self.say(f"version {version} is made of different attempts: "
                         f"{first.key}; {push.key}")
        sent = {push.key.rank: push for push in
                self.sent[first.key.start, version - 1, attempt]}
        missing = sorted(members - set(sent))
        if self.pushes_min is None:
            if missing:
                self.say(f"version {version}: ranks {missing} have sent "
                         "nothing for it")
            for rank, push in sent.items():
                if push.answers and not push.applied:
                    self.say(f"version {version}: the push of rank {rank} was "
                             f"{push.verdict}, the others' applied")
            return
        if self.pushes_min == 0:
            return
        may_count = [push for push in sent.values()
                     if push.applied or push.lost]
        if len(pushes) > self.pushes_min or (
                len(may_count) < self.pushes_min and not missing):
            self.say(f"version {version}: {len(pushes)} pushes are in it and "
                     f"{len(may_count) - len(pushes)} more may be, want "
                     f"{self.pushes_min}")

    def _check_gaps(self, start):
        """Versions rise by one: each is made by a push that is known, or by
        one whose answer was lost."""
        made = {push.version for push in self.pushes.values()
                if push.key.start == start and
                push.verdict in (*APPLIED, "skipped")}
        if not made:
            return
        lost = [push for push in self.pushes.values()
                if push.key.start == start and push.lost]
        gaps = sorted(set(range(self.bases[start] + 1, max(made))) - made)
        for version in gaps:
            # The push under sync that would be in this version, or any.
            fitting = [push for push in lost if not push.synchronous and
                       push.read < version or push.read == version - 1]
            if not fitting:
                self.say(f"version {version} of start {start}: no push made it")
                continue
            for push in fitting if fitting[0].synchronous else fitting[:1]:
                lost.remove(push)

    # ---- order

    def _check_order(self):
        self._check_own_order()
        self._check_reads_of_the_future()
        self._check_newest_reads()

    def _check_own_order(self):
        """What a process sees next is not older."""
        newest = {}
        for event in self.events:
            if "error" in event or event["event"] not in ("assignment",
                                                          "verdict"):
                continue
            if event["event"] == "assignment" and event["kind"] != "train":
                continue
            who = event["incarnation"], event["rank"]
            version = event["version"]
            if event["event"] == "verdict" and event["verdict"] not in APPLIED:
                continue
            if version < newest.get(who, version):
                self.say(f"rank {event['rank']}: got version {version} after "
                         f"{newest[who]}")
            newest[who] = version

    def _check_reads_of_the_future(self):
        sent = collections.defaultdict(int)
        for push in self.pushes.values():
            if push.applied and push.sent_us is not None:
                at = push.key.start, push.version
                sent[at] = max(sent[at], push.sent_us)
        for event in self.events:
            if "error" in event or not any(event.get("weights", ())):
                continue
            at = self.start_of(event), event["version"]
            if event["end_us"] < sent.get(at, 0):
                self.say(f"version {at[1]}: rank {event['rank']} read it before "
                         "all its pushes were sent")

    def _check_newest_reads(self):
        """Events are in the order of their ends; a read is compared with
        answers that came before it began."""
        answered = collections.defaultdict(list)
        for event in self.events:
            start = self.start_of(event)
            if event["event"] == "verdict" and \
                    event.get("verdict") in APPLIED:
                newest = max(event["version"],
                             answered[start][-1][1] if answered[start] else 0)
                answered[start].append((event["end_us"], newest))
            if event["event"] != "pull" or "error" in event or \
                    event["requested"] is not None:
                continue
            before = bisect.bisect_left(answered[start], (event["begin_us"],))
            if before and event["version"] < answered[start][before - 1][1]:
                self.say(f"rank {event['rank']} read version "
                         f"{event['version']} as the newest after "
                         f"{answered[start][before - 1][1]} was announced")


def check(events, **bounds):
    """All violations in `events`. `pushes_min`: K of --min_pushes, 0 if it
    changes in the run; `staleness_max`: the bound of a policy that drops older pushes."""
    return History(events, **bounds).check()


def summary(events):
    """Counts by which a test can see that a history is not empty."""
    history = History(events)
    return {
        "applied": sum(push.applied for push in history.pushes.values()),
        "lost": sum(push.lost for push in history.pushes.values()),
        "dropped": sum(push.verdict == "dropped"
                       for push in history.pushes.values()),
        "starts": len(history.bases),
        "incarnations": len({event["incarnation"] for event in events}),
        "reads": sum(event["event"] == "pull" and "error" not in event
                     for event in events),
        "errors": sum("error" in event for event in events)}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    events = load(sys.argv[1:])
    found = check(events)
    for problem in found:
        print(problem)
    print(", ".join(f"{name}: {count}"
                    for name, count in summary(events).items()))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
