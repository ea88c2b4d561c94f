#!/usr/bin/env python3
"""The checker of histories: accepts a right one, refuses each wrong one."""

import pathlib
import tempfile
import unittest

import history_check


class Script:
    """Writes a history event by event; each takes one microsecond.

    A text has the events of the methods below, separated by semicolons, such as
    "give 0,1 1 0 members=0,1": for ranks 0 and 1, step 1 on version 0.
    """

    def __init__(self):
        self.events = []
        self.now = 0

    def play(self, text):
        for line in text.split(";"):
            verb, *words = line.split()
            numbers, named = [], {}
            for word in words:
                name, _, value = word.partition("=")
                if not value:
                    numbers.append(word)
                elif name == "weights":
                    named[name] = [] if value == "none" else [value]
                elif name in ("members", "ranks"):
                    named[name] = list(map(int, value.split(",")))
                else:
                    named[name] = int(value) if value.isdigit() else value
            for first in numbers[0].split(","):
                getattr(self, verb)(int(first), *map(int, numbers[1:]), **named)

    def add(self, event, rank, start=1, **fields):
        self.now += 2
        self.events.append({"event": event, "rank": rank,
                            "incarnation":
                            (start << history_check.START_BITS) + rank,
                            "begin_us": self.now, "end_us": self.now + 1,
                            **fields})
        return self.events[-1]

    def give(self, rank, sequence, version, members=(), attempt=0, begin=None,
             epoch=0, **more):
        begin = 10 * (2 * version + rank) if begin is None else begin
        return self.add("assignment", rank, kind="train", sequence=sequence,
                        attempt=attempt, version=version, members=list(members),
                        epoch=epoch, range=[begin, begin + 10], **more)

    def send(self, rank, sequence, version, attempt=0, **more):
        return self.add("push", rank, sequence=sequence, attempt=attempt,
                        version=version, samples=10, gradients=["a"], **more)

    def answer(self, rank, sequence, version, verdict="applied", attempt=0,
               staleness=0, weights=None, **more):
        return self.add(
            "verdict", rank, sequence=sequence, attempt=attempt,
            verdict=verdict, version=version, duplicate=False,
            staleness=staleness,
            weights=[f"w{version}"] if weights is None else weights, **more)

    def pull(self, rank, version, requested=None, **more):
        return self.add("pull", rank, requested=requested, statistics="",
                        version=version, **{"weights": [f"w{version}"], **more})

    def step(self, version, ranks=(0, 1), sequence=None, weights=None, **more):
        """A synchronous step that makes version + 1."""
        sequence = version + 1 if sequence is None else sequence
        for rank in ranks:
            self.give(rank, sequence, version, ranks, **more)
        for rank in ranks:
            self.send(rank, sequence, version, **more)
        for rank in ranks:
            self.answer(rank, sequence, version + 1, weights=weights, **more)

    def lone(self, rank, sequence, read, version, **more):
        """An asynchronous push."""
        self.give(rank, sequence, read, begin=1000 * rank + 10 * sequence)
        self.send(rank, sequence, read)
        self.answer(rank, sequence, version, staleness=version - 1 - read,
                    **more)


# What each shows: events, and the bounds of the run.
RIGHT = {
    "synchronous steps": ("step 0; step 1; step 2; pull 0 3", {}),
    "asynchronous pushes": ("lone 0 1 0 1; lone 1 1 0 2; lone 0 2 2 3",
                            {"staleness_max": 1}),
    "a repeated attempt": (
        "give 0,1 1 0 members=0,1; send 0 1 0;"
        "answer 0 1 0 verdict=dropped weights=none;"
        "step 0 sequence=1 attempt=1", {}),
    "a lost answer explains a version": (
        "lone 0 1 0 1; give 1 1 1 begin=500; send 1 1 1; lone 0 2 2 3", {}),
    # The checkpoint was of version 1: versions 2 and 3 are made again, with
    # other content.
    "a restart makes later versions again": (
        "step 0; step 1; step 2; pull 0 1 start=2; step 1 start=2 weights=other",
        {}),
    # The second start continues at 1, the third at 3, which the second made
    # again.
    "a void version may be made again after two restarts": (
        "step 0; step 1; step 2; step 1 sequence=5 start=2 weights=new2;"
        "step 2 sequence=6 start=2 weights=new3; pull 0 3 start=3 weights=new3",
        {}),
    "first k of n": (
        "give 0,1,2 1 0 members=0,1,2; send 0,1,2 1 0; answer 0,2 1 1;"
        "answer 1 1 0 verdict=dropped weights=none", {"pushes_min": 2}),
}

# The same, and a part of what is found.
WRONG = {
    "two answers to a push": (
        "lone 0 1 0 1; answer 0 1 2 staleness=1", "different answers"),
    "a push applied in two attempts": (
        "lone 0 1 0 1; give 0 1 1 attempt=1 begin=700; send 0 1 1 attempt=1;"
        "answer 0 1 2 attempt=1", "applied at 1 and 2"),
    "an answer to nothing": ("give 0 1 0; answer 0 1 1", "never sent"),
    "samples applied twice": (
        "lone 0 1 0 1; give 1 1 1 begin=15; send 1 1 1; answer 1 1 2",
        "sample 15 is applied twice"),
    # Continues at version 1, with samples of version 1.
    "samples applied again after a restart": (
        "step 0; step 1; give 0 5 1 begin=0 start=2; send 0 5 1 start=2;"
        "answer 0 5 2 start=2", "sample 0 is applied twice"),
    "two contents of a version": (
        "step 0; pull 1 1 weights=other", "partition 0 is w1 and other"),
    "a restart that changes its first version": (
        "step 0; step 1; give 0 3 1 begin=700 start=2;"
        "pull 0 1 start=2 weights=other", "partition 0 is w1 and other"),
    "a version of two asynchronous pushes": (
        "lone 0 1 0 1; lone 1 1 0 1", "version 1 is made of 2 pushes"),
    "a version of two attempts": (
        "give 0 1 0 members=0,1; send 0 1 0; answer 0 1 1;"
        "give 1 1 0 members=0,1 attempt=1; send 1 1 0 attempt=1;"
        "answer 1 1 1 attempt=1", "different attempts"),
    "a step without a member": (
        "give 0 1 0 members=0,1; send 0 1 0; answer 0 1 1",
        "ranks [1] have sent nothing"),
    "a member dropped from an applied step": (
        "give 0,1 1 0 members=0,1; send 0,1 1 0; answer 0 1 1;"
        "answer 1 1 0 verdict=dropped weights=none",
        "the push of rank 1 was dropped"),
    "one push too many of k of n": (
        "step 0 ranks=0,1,2", "3 pushes are in it", {"pushes_min": 2}),
    "one push too few of k of n": (
        "give 0,1,2 1 0 members=0,1,2; send 0,1,2 1 0; answer 0 1 1;"
        "answer 1,2 1 0 verdict=dropped weights=none",
        "1 pushes are in it", {"pushes_min": 2}),
    "a late push in the next step": (
        "step 0; give 0,1 2 1 members=0,1; send 0 2 0; send 1 2 1;"
        "answer 0,1 2 2", "read version 0, but is applied at 2"),
    "a wrong staleness": (
        "lone 0 1 0 1; give 1 1 0 begin=500; send 1 1 0;"
        "answer 1 1 2 staleness=0", "says 0 versions between"),
    "a push above the bound": (
        "lone 0 1 0 1; lone 0 2 1 2; lone 1 1 0 3",
        "2 versions late, want at most 1", {"staleness_max": 1}),
    "a version from nowhere": (
        "lone 0 1 0 1; lone 1 1 1 3", "no push made it"),
    "one lost answer explains one version only": (
        "lone 0 1 0 1; give 1 1 1 begin=500; send 1 1 1; lone 0 2 1 4",
        "version 3 of start 1: no push made it"),
    "a rank that goes back": (
        "step 0; step 1; give 0 3 1 members=0,1 attempt=1",
        "rank 0: got version 1 after 2"),
    "a version read before it was pushed": (
        "give 0 1 0; pull 1 1; send 0 1 0; answer 0 1 1",
        "read it before all its pushes were sent"),
    "an old version read as the newest": (
        "step 0; step 1; pull 0 1", "read version 1 as the newest after 2"),
}


def found_in(text, bounds):
    script = Script()
    script.play(text)
    return history_check.check(script.events, **bounds)


class HistoryCheck(unittest.TestCase):
    def test_right_ones(self):
        for name, (text, bounds) in RIGHT.items():
            with self.subTest(name):
                self.assertEqual(found_in(text, bounds), [])

    def test_wrong_ones_are_refused(self):
        for name, (text, part, *bounds) in WRONG.items():
            with self.subTest(name):
                found = found_in(text, bounds[0] if bounds else {})
                self.assertTrue(any(part in problem for problem in found),
                                f"want '{part}' in {found}")

    def test_half_a_line_of_a_killed_process_is_passed_over(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "log"
            path.write_text('{"event":"leave","end_us":1}\n{"event":"jo'
                            '{"event":"leave","end_us":2}\n{"eve',
                            encoding="utf-8")
            self.assertEqual([event["end_us"] for event in
                              history_check.load([path])], [1, 2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
