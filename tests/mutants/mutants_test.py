#!/usr/bin/env python3
"""mutants.py on small trees: what it reads, refuses, plants and reports."""

import os
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

import mutants

TEXT = """what: It adds too much.
tests: fast_test slow_test
file: a.cc
@@
 int Add(int a, int b) {
-  return a + b;
+  return a + b + 1;
 }
"""
SOURCE = "int Add(int a, int b) {\n  return a + b;\n}\n"
PASSED = "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n"
FAILED = PASSED + "[ RUN      ] A.C\n[  FAILED  ] A.C (0 ms)\n"


class FakeTree(mutants.Tree):
    """Builds nothing; a test fails if its source has `bugs[test]`."""

    def __init__(self, path, bugs):
        super().__init__(path=path, build=path, jobs=1)
        self.bugs = bugs
        self.ran = []

    def make(self, tests):
        pass

    def fails(self, test):
        self.ran.append(test)
        text = (self.path / "a.cc").read_text()
        return "A.C" if self.bugs.get(test, "nothing") in text else None


class Mutants(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "tests/mutants/mutations").mkdir(parents=True)
        (self.root / "tests/CMakeLists.txt").write_text(
            "cohort_test(fast_test\n)\ncohort_test(slow_test\n)\n")
        self.write_source(SOURCE)
        self.write_mutant(TEXT)

    def write_source(self, text):
        (self.root / "a.cc").write_text(text)

    def write_mutant(self, text):
        (self.root / "tests/mutants/mutations/add.mutant").write_text(text)

    def assert_problem(self, part):
        found = mutants.problems(self.root)
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])

    def test_pieces_have_every_mutant_once(self):
        pieces = [mutants.piece_of(list(range(10)), f"{n}/3") for n in (1, 2, 3)]
        self.assertEqual(sorted(sum(pieces, [])), list(range(10)))
        with self.assertRaises(SystemExit):
            mutants.piece_of([], "4/3")

    def test_a_mutation_that_applies_once_is_fine(self):
        self.assertEqual(mutants.problems(self.root), [])

    def test_lines_that_are_gone_are_found(self):
        self.write_source(SOURCE.replace("a + b", "b + a"))
        self.assert_problem("occur 0 times in a.cc")

    def test_lines_that_are_there_twice_are_found(self):
        self.write_source(2 * SOURCE)
        self.assert_problem("occur 2 times in a.cc")

    def test_files_and_tests_that_are_gone_are_found(self):
        self.write_mutant(TEXT.replace("file: a.cc", "file: b.cc"))
        self.assert_problem("there is no b.cc")
        self.write_mutant(TEXT.replace("slow_test", "other_test"))
        self.assert_problem("there is no test other_test")

    def test_tests_of_real_processes_are_scripts(self):
        self.write_mutant(TEXT.replace("slow_test", "processes_history_test"))
        self.assert_problem("there is no test processes_history_test")
        (self.root / "tests/integration").mkdir()
        (self.root / "tests/integration/history_test.py").touch()
        self.assertEqual(mutants.problems(self.root), [])

    def test_a_script_needs_the_programs_and_names_its_failure(self):
        tree = mutants.Tree(path=self.root, build=self.root, jobs=1)
        (self.root / "tests/integration").mkdir()
        (self.root / "tests/integration/history_test.py").write_text(
            "import unittest\n"
            "class T(unittest.TestCase):\n"
            "    def test_x(self):\n"
            "        self.fail('no')\n"
            "unittest.main()\n")
        self.assertEqual(tree.fails("processes_history_test"), "test_x")
        done = subprocess.CompletedProcess((), 0)
        with unittest.mock.patch.object(tree, "run",
                                        return_value=done) as run:
            tree.make(("fast_test", "processes_history_test"))
        self.assertEqual(run.call_args.args[-4:],
                         ("fast_test", *mutants.PROGRAMS))

    def test_malformed_mutations_are_refused(self):
        for before, after, part in (
                ("@@\n", "", "no line @@"),
                ("what:", "where:", "want each of what"),
                ("tests: fast_test slow_test\n", "", "no 'tests:'"),
                ("+  return", "*  return", "begins with a space"),
                (" + 1", "", "changes nothing")):
            with self.subTest(part=part):
                self.write_mutant(TEXT.replace(before, after))
                self.assert_problem(part)

    def try_with(self, **bugs):
        tree = FakeTree(self.root, bugs)
        outcome = mutants.try_mutant(mutants.parse("add", TEXT), tree)
        self.assertEqual((self.root / "a.cc").read_text(), SOURCE)
        return tree, outcome

    def test_the_first_test_that_fails_ends_a_mutant(self):
        tree, outcome = self.try_with(fast_test="+ 1", slow_test="+ 1")
        self.assertEqual(tree.ran, ["fast_test"])
        self.assertEqual(outcome.text(), "fast_test: A.C")

    def test_a_mutant_that_no_test_finds_is_told(self):
        tree, outcome = self.try_with()
        self.assertEqual(tree.ran, ["fast_test", "slow_test"])
        self.assertEqual(outcome.text(), "not caught")

    def test_a_mutant_that_only_a_slow_test_finds_is_told(self):
        tree = FakeTree(self.root, {"slow_test": "+ 1"})
        text = TEXT.replace("fast_test slow_test", "fast_test\nslow: slow_test")
        outcome = mutants.try_mutant(mutants.parse("add", text), tree)
        self.assertEqual(outcome.text(), "only slow: slow_test: A.C")

    def test_the_source_is_put_back_after_an_error(self):
        tree = FakeTree(self.root, {})
        with unittest.mock.patch.object(
                tree, "make", side_effect=mutants.MutantError("no compile")):
            with self.assertRaises(mutants.MutantError):
                mutants.try_mutant(mutants.parse("add", TEXT), tree)
        self.assertEqual((self.root / "a.cc").read_text(), SOURCE)

    def test_tests_that_fail_without_a_bug_show_nothing(self):
        mutant = mutants.parse("add", TEXT)
        with self.assertRaisesRegex(SystemExit, "without any mutation: A.C"):
            mutants.check_control([mutant], FakeTree(self.root,
                                                     {"slow_test": "int"}))

    def test_the_failed_case_is_read_from_the_output(self):
        self.assertIsNone(mutants.failed_case(PASSED))
        self.assertEqual(mutants.failed_case(FAILED), "A.C")
        # It crashed or hangs.
        self.assertEqual(mutants.failed_case(PASSED + "[ RUN      ] A.D\n"),
                         "A.D")
        self.assertEqual(mutants.failed_case(
            "[  FAILED  ] All/A.E/0, where GetParam() = 3 (1 ms)"), "All/A.E/0")

    def test_rows_replace_those_of_their_mutation(self):
        self.assertEqual(
            mutants.with_rows("name\tcaught by\ts\na\told\t1\ngone\tx\t2\n",
                              {"b": "b\tnew\t3"}, ["a", "b", "c"]),
            "name\tcaught by\ts\na\told\t1\nb\tnew\t3\n")

    def test_a_copy_takes_what_differs_and_leaves_the_build(self):
        (self.root / "build").mkdir()
        (self.root / "build/x").write_text("")
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            mutants.copy_tree(self.root, tree)
            self.assertFalse((tree / "build").exists())
            os.utime(tree / "a.cc", (1, 1))
            mutants.copy_tree(self.root, tree)
            self.assertEqual((tree / "a.cc").stat().st_mtime, 1)
            self.write_source("other")
            mutants.copy_tree(self.root, tree)
            self.assertEqual((tree / "a.cc").read_text(), "other")


if __name__ == "__main__":
    unittest.main()
