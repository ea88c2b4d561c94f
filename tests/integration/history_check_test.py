#!/usr/bin/env python3
"""The checker of histories: accepts a right one, refuses each wrong one."""

import pathlib
import tempfile
import unittest

import history_check

FIRST_START = 1 << history_check.START_BITS
SECOND_START = 2 << history_check.START_BITS
THIRD_START = 3 << history_check.START_BITS


class Script:
    """Writes a history event by event; each takes one microsecond."""

    def __init__(self):
        self.events = []
        self.now = 0

    def add(self, event, rank, incarnation=FIRST_START, **fields):
        self.now += 2
        self.events.append({"event": event, "rank": rank,
                            "incarnation": incarnation + rank,
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

    def step(self, version, ranks=(0, 1), sequence=None, **more):
        """A synchronous step that makes version + 1."""
        sequence = version + 1 if sequence is None else sequence
        for rank in ranks:
            self.give(rank, sequence, version, ranks, **more)
        for rank in ranks:
            self.send(rank, sequence, version, **more)
        for rank in ranks:
            self.answer(rank, sequence, version + 1, **more)

    def lone(self, rank, sequence, read, version, **more):
        """An asynchronous push."""
        self.give(rank, sequence, read, begin=1000 * rank + 10 * sequence)
        self.send(rank, sequence, read)
        self.answer(rank, sequence, version, staleness=version - 1 - read,
                    **more)


class HistoryCheck(unittest.TestCase):
    def setUp(self):
        self.script = Script()

    def found(self, **bounds):
        events = sorted(self.script.events, key=lambda e: e["end_us"])
        return history_check.check(events, **bounds)

    def assert_right(self, **bounds):
        self.assertEqual(self.found(**bounds), [])

    def assert_refused(self, part, **bounds):
        found = self.found(**bounds)
        self.assertTrue(any(part in problem for problem in found),
                        f"want '{part}' in {found}")

    # ---- right ones

    def test_synchronous_steps_are_right(self):
        for version in range(3):
            self.script.step(version)
        self.script.pull(0, 3)
        self.assert_right()

    def test_asynchronous_pushes_are_right(self):
        self.script.lone(0, 1, 0, 1)
        self.script.lone(1, 1, 0, 2)
        self.script.lone(0, 2, 2, 3)
        self.assert_right(staleness_max=1)

    def test_a_repeated_attempt_is_right(self):
        s = self.script
        for rank in (0, 1):
            s.give(rank, 1, 0, (0, 1))
        s.send(0, 1, 0)
        s.answer(0, 1, 0, verdict="dropped", weights=[])
        s.step(0, sequence=1, attempt=1)
        self.assert_right()

    def test_a_lost_answer_explains_a_version(self):
        s = self.script
        s.lone(0, 1, 0, 1)
        s.give(1, 1, 1, begin=500)
        s.send(1, 1, 1)
        s.lone(0, 2, 2, 3)
        self.assert_right()

    def test_a_restart_makes_later_versions_again(self):
        for version in range(3):
            self.script.step(version)
        # The checkpoint was of version 1: versions 2 and 3 are made again,
        # with other content.
        s = self.script
        s.pull(0, 1, incarnation=SECOND_START)
        for rank in (0, 1):
            s.give(rank, 2, 1, (0, 1), incarnation=SECOND_START)
        for rank in (0, 1):
            s.send(rank, 2, 1, incarnation=SECOND_START)
        for rank in (0, 1):
            s.answer(rank, 2, 2, weights=["other"], incarnation=SECOND_START)
        self.assert_right()

    def test_a_void_version_may_be_made_again_after_two_restarts(self):
        for version in range(3):
            self.script.step(version)
        s = self.script
        # The second start continues at 1, the third at 3, which the second
        # made anew.
        for version in (1, 2):
            for rank in (0, 1):
                s.give(rank, 4, version, (0, 1), incarnation=SECOND_START)
            for rank in (0, 1):
                s.send(rank, 4, version, incarnation=SECOND_START)
            for rank in (0, 1):
                s.answer(rank, 4, version + 1, weights=[f"new{version + 1}"],
                         incarnation=SECOND_START)
            for event in s.events[-6:]:
                event["sequence"] += version
        s.pull(0, 3, weights=["new3"], incarnation=THIRD_START)
        self.assert_right()

    def test_first_k_of_n_are_right(self):
        s = self.script
        for rank in (0, 1, 2):
            s.give(rank, 1, 0, (0, 1, 2), begin=10 * rank)
            s.send(rank, 1, 0)
        for rank in (0, 2):
            s.answer(rank, 1, 1)
        s.answer(1, 1, 0, verdict="dropped", weights=[])
        self.assert_right(pushes_min=2)

    def test_half_a_line_of_a_killed_process_is_passed_over(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "log"
            path.write_text('{"event":"leave","end_us":1}\n{"event":"jo'
                            '{"event":"leave","end_us":2}\n{"eve',
                            encoding="utf-8")
            self.assertEqual([event["end_us"] for event in
                              history_check.load([path])], [1, 2])

    # ---- wrong ones

    def test_two_answers_to_a_push_are_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.answer(0, 1, 2, staleness=1)
        self.assert_refused("different answers")

    def test_a_push_applied_in_two_attempts_is_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.give(0, 1, 1, attempt=1, begin=700)
        self.script.send(0, 1, 1, attempt=1)
        self.script.answer(0, 1, 2, attempt=1)
        self.assert_refused("applied at 1 and 2")

    def test_an_answer_to_nothing_is_refused(self):
        self.script.give(0, 1, 0)
        self.script.answer(0, 1, 1)
        self.assert_refused("never sent")

    def test_samples_applied_twice_are_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.give(1, 1, 1, begin=15)
        self.script.send(1, 1, 1)
        self.script.answer(1, 1, 2)
        self.assert_refused("sample 15 is applied twice")

    def test_samples_applied_again_after_a_restart_are_refused(self):
        self.script.step(0)
        self.script.step(1)
        s = self.script
        # Continues at version 1, with samples of version 1.
        s.give(0, 5, 1, begin=0, incarnation=SECOND_START)
        s.send(0, 5, 1, incarnation=SECOND_START)
        s.answer(0, 5, 2, incarnation=SECOND_START)
        self.assert_refused("sample 0 is applied twice")

    def test_two_contents_of_a_version_are_refused(self):
        self.script.step(0)
        self.script.pull(1, 1, weights=["other"])
        self.assert_refused("partition 0 is w1 and other")

    def test_a_restart_that_changes_its_first_version_is_refused(self):
        self.script.step(0)
        self.script.step(1)
        s = self.script
        s.give(0, 3, 1, begin=700, incarnation=SECOND_START)
        s.pull(0, 1, weights=["other"], incarnation=SECOND_START)
        self.assert_refused("partition 0 is w1 and other")

    def test_a_version_of_two_asynchronous_pushes_is_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.lone(1, 1, 0, 1)
        self.assert_refused("version 1 is made of 2 pushes")

    def test_a_version_of_two_attempts_is_refused(self):
        s = self.script
        for rank in (0, 1):
            s.give(rank, 1, 0, (0, 1), attempt=rank)
            s.send(rank, 1, 0, attempt=rank)
            s.answer(rank, 1, 1, attempt=rank)
        self.assert_refused("different attempts")

    def test_a_step_without_a_member_is_refused(self):
        self.script.give(0, 1, 0, (0, 1))
        self.script.send(0, 1, 0)
        self.script.answer(0, 1, 1)
        self.assert_refused("ranks [1] have sent nothing")

    def test_a_member_dropped_from_an_applied_step_is_refused(self):
        s = self.script
        for rank in (0, 1):
            s.give(rank, 1, 0, (0, 1))
            s.send(rank, 1, 0)
        s.answer(0, 1, 1)
        s.answer(1, 1, 0, verdict="dropped", weights=[])
        self.assert_refused("the push of rank 1 was dropped")

    def test_one_push_too_many_of_k_of_n_is_refused(self):
        self.script.step(0, ranks=(0, 1, 2))
        self.assert_refused("3 pushes are in it", pushes_min=2)

    def test_one_push_too_few_of_k_of_n_is_refused(self):
        s = self.script
        for rank in (0, 1, 2):
            s.give(rank, 1, 0, (0, 1, 2), begin=10 * rank)
            s.send(rank, 1, 0)
        s.answer(0, 1, 1)
        for rank in (1, 2):
            s.answer(rank, 1, 0, verdict="dropped", weights=[])
        self.assert_refused("1 pushes are in it", pushes_min=2)

    def test_a_late_push_in_the_next_step_is_refused(self):
        s = self.script
        self.script.step(0)
        for rank in (0, 1):
            s.give(rank, 2, 1, (0, 1))
        s.send(0, 2, 0)
        s.send(1, 2, 1)
        for rank in (0, 1):
            s.answer(rank, 2, 2)
        self.assert_refused("read version 0, but is applied at 2")

    def test_a_wrong_staleness_is_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.give(1, 1, 0, begin=500)
        self.script.send(1, 1, 0)
        self.script.answer(1, 1, 2, staleness=0)
        self.assert_refused("says 0 versions between")

    def test_a_push_above_the_bound_is_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.lone(0, 2, 1, 2)
        self.script.lone(1, 1, 0, 3)
        self.assert_refused("2 versions late, want at most 1", staleness_max=1)

    def test_a_version_from_nowhere_is_refused(self):
        self.script.lone(0, 1, 0, 1)
        self.script.lone(1, 1, 1, 3)
        self.assert_refused("no push made it")

    def test_one_lost_answer_explains_one_version_only(self):
        s = self.script
        s.lone(0, 1, 0, 1)
        s.give(1, 1, 1, begin=500)
        s.send(1, 1, 1)
        s.lone(0, 2, 1, 4)
        self.assert_refused("version 3 of start 1: no push made it")

    def test_a_rank_that_goes_back_is_refused(self):
        self.script.step(0)
        self.script.step(1)
        self.script.give(0, 3, 1, (0, 1), attempt=1)
        self.assert_refused("rank 0: got version 1 after 2")

    def test_a_version_read_before_it_was_pushed_is_refused(self):
        self.script.give(0, 1, 0)
        self.script.pull(1, 1)
        self.script.send(0, 1, 0)
        self.script.answer(0, 1, 1)
        self.assert_refused("read it before all its pushes were sent")

    def test_an_old_version_read_as_the_newest_is_refused(self):
        self.script.step(0)
        self.script.step(1)
        self.script.pull(0, 1)
        self.assert_refused("read version 1 as the newest after 2")


if __name__ == "__main__":
    unittest.main(verbosity=2)
