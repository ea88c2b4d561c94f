#!/usr/bin/env python3
"""Plants bugs one by one and shows that a test finds each: see README.md."""

import argparse
import dataclasses
import filecmp
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIELDS = ("what", "tests", "slow", "file")
# Folders of the tree that are not sources.
NOT_COPIED = (".git", "build", "__pycache__")
# Enough for every planted bug that the simulator finds at all; a seed takes
# milliseconds.
SIM_SEEDS = "300"
# Tests of real processes: processes_NAME is tests/integration/NAME.py, as in
# ctest, and needs these programs.
PROCESSES = "processes_"
PROGRAMS = ("cohort-server", "cohort-worker", "cohortctl")
# A test that hangs has found the bug, too. Above the slowest test's time on a
# loaded machine.
TEST_TIMEOUT_S = 900


class MutantError(Exception):
    """A mutation that cannot be used; the text names it."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A planted bug: `old` occurs once in `file` and becomes `new`."""
    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    slow: tuple[str, ...]

    def mutated(self, text: str) -> str:
        """Raises MutantError unless `old` occurs exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise MutantError(f"{self.name}: its lines occur {count} times in "
                              f"{self.file}, want once")
        return text.replace(self.old, self.new)


def parse(name: str, text: str) -> Mutant:
    """Reads a mutation: fields, a line @@, and lines as in a patch."""
    head, mark, hunk = text.partition("\n@@\n")
    if not mark:
        raise MutantError(f"{name}: got no line @@")
    fields = {}
    for line in head.splitlines():
        key, colon, value = line.partition(": ")
        if not colon or key not in FIELDS or key in fields:
            raise MutantError(f"{name}: got '{line}', want each of "
                              f"{', '.join(FIELDS)} at most once")
        fields[key] = value
    for key in ("what", "tests", "file"):
        if not fields.get(key):
            raise MutantError(f"{name}: got no '{key}:'")
    lines = hunk.splitlines(keepends=True)
    for line in lines:
        if line[0] not in " +-":
            raise MutantError(f"{name}: got '{line.rstrip()}', want a line "
                              "that begins with a space, + or -")
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    if old == new or not old:
        raise MutantError(f"{name}: it changes nothing")
    return Mutant(name=name, what=fields["what"], file=fields["file"], old=old,
                  new=new, tests=tuple(fields["tests"].split()),
                  slow=tuple(fields.get("slow", "").split()))


def load(folder: pathlib.Path) -> list[Mutant]:
    """All mutations of a folder, by name."""
    return [parse(path.stem, path.read_text())
            for path in sorted(folder.glob("*.mutant"))]


def script_of(test: str) -> str | None:
    """The path of a test of real processes; None for others."""
    name = test.removeprefix(PROCESSES)
    return f"tests/integration/{name}.py" if name != test else None


def known(root: pathlib.Path, test: str, targets: str) -> bool:
    """Whether there is such a test; `targets`: the text of CMake's files."""
    script = script_of(test)
    if script is not None:
        return (root / script).is_file()
    return f"cohort_test({test}\n" in targets


def problems(root: pathlib.Path) -> list[str]:
    """What keeps mutations from being used on a tree; needs no build."""
    found = []
    targets = "".join(path.read_text() for path in
                      (root / "tests").rglob("CMakeLists.txt"))
    for path in sorted((root / "tests/mutants/mutations").glob("*.mutant")):
        try:
            mutant = parse(path.stem, path.read_text())
            source = root / mutant.file
            if not source.is_file():
                raise MutantError(f"{mutant.name}: there is no {mutant.file}")
            mutant.mutated(source.read_text())
            for test in (*mutant.tests, *mutant.slow):
                if not known(root, test, targets):
                    raise MutantError(
                        f"{mutant.name}: there is no test {test}")
        except MutantError as error:
            found.append(str(error))
    return found


def copy_tree(source: pathlib.Path, tree: pathlib.Path) -> None:
    """Copies what differs, so that a second run builds little."""
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in NOT_COPIED]
        to = tree / pathlib.Path(folder).relative_to(source)
        to.mkdir(parents=True, exist_ok=True)
        for name in files:
            before, after = pathlib.Path(folder) / name, to / name
            if after.exists() and filecmp.cmp(before, after, shallow=False):
                continue
            shutil.copy(before, after)


def failed_case(output: str) -> str | None:
    """The first test case that failed or did not end, from the output of gtest
    or of unittest."""
    begun = None
    for line in output.splitlines():
        if match := re.match(r"(?:FAIL|ERROR): (\w+) \(", line):
            return match[1]
        if match := re.match(r"\[  FAILED  \] (\S+?)(,| \(|$)", line):
            return match[1]
        if match := re.match(r"\[ RUN      \] (\S+)", line):
            begun = match[1]
        elif re.match(r"\[       OK \]", line):
            begun = None
    return begun


@dataclasses.dataclass
class Tree:
    """The copy that is changed, and its build folder."""
    path: pathlib.Path
    build: pathlib.Path
    jobs: int

    def run(self, *command, **options) -> subprocess.CompletedProcess:
        return subprocess.run([str(word) for word in command], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, **options)

    def configure(self) -> None:
        if (self.build / "build.ninja").exists():
            return
        result = self.run("cmake", "-G", "Ninja", "-S", self.path, "-B",
                          self.build, "-DCMAKE_BUILD_TYPE=Release",
                          "-DCOHORT_BUILD_TESTS=ON",
                          # A bug may leave a parameter unused.
                          "-DCOHORT_WARNINGS_ARE_ERRORS=OFF")
        if result.returncode != 0:
            raise SystemExit(f"configure failed:\n{result.stdout}")

    def make(self, tests: tuple[str, ...]) -> None:
        wrapper = shlex.split(os.environ.get("COHORT_BUILD_WRAPPER", ""))
        targets = dict.fromkeys(
            target for test in tests
            for target in (PROGRAMS if script_of(test) else (test,)))
        result = self.run(*wrapper, "cmake", "--build", self.build,
                          "--parallel", self.jobs, "--target", *targets)
        if result.returncode != 0:
            raise MutantError(f"{', '.join(tests)}: cannot be built:\n"
                              f"{result.stdout}")

    def fails(self, test: str) -> str | None:
        """The case that a test fails in, or None if it passes."""
        environment = {"COHORT_SOURCE_DIR": str(self.path),
                       "COHORT_BIN_DIR": str(self.build / "bin"),
                       "COHORT_SIM_SEEDS": SIM_SEEDS, **os.environ}
        script = script_of(test)
        command = ([sys.executable, "-B", self.path / script, "--failfast"]
                   if script is not None else
                   [self.build / "bin" / test, "--gtest_fail_fast"])
        try:
            result = self.run(*command,
                              env=environment, timeout=TEST_TIMEOUT_S,
                              errors="replace")
        except subprocess.TimeoutExpired as hung:
            output = (hung.stdout or b"").decode(errors="replace")
            return f"{failed_case(output) or test} (it hangs)"
        if result.returncode == 0:
            return None
        return failed_case(result.stdout) or f"exit code {result.returncode}"


@dataclasses.dataclass
class Outcome:
    """What became of a mutant; no `test`: no test found it."""
    mutant: Mutant
    seconds: float = 0
    test: str = ""
    case: str = ""
    missed: tuple[str, ...] = ()

    def text(self) -> str:
        if not self.test:
            return "not caught"
        slow = "only slow: " if self.test in self.mutant.slow else ""
        return f"{slow}{self.test}: {self.case}"


def run_until_caught(outcome: Outcome, tests: tuple[str, ...],
                     tree: Tree) -> None:
    for test in tests:
        case = tree.fails(test)
        if case is not None:
            outcome.test, outcome.case = test, case
            return
        outcome.missed += (test,)


def try_mutant(mutant: Mutant, tree: Tree) -> Outcome:
    """Plants a bug, runs its tests up to the first that fails, and takes it
    out again."""
    source = tree.path / mutant.file
    text = source.read_text()
    outcome = Outcome(mutant)
    begin = time.monotonic()
    try:
        source.write_text(mutant.mutated(text))
        for tests in (mutant.tests, mutant.slow):
            if not tests or outcome.test:
                continue
            # Together: what they share is compiled once, on all cores.
            tree.make(tests)
            run_until_caught(outcome, tests, tree)
    finally:
        source.write_text(text)
    outcome.seconds = time.monotonic() - begin
    return outcome


def row(outcome: Outcome) -> str:
    return f"{outcome.mutant.name}\t{outcome.text()}\t{outcome.seconds:.0f}"


def with_rows(table: str, rows: dict[str, str], names: list[str]) -> str:
    """The table of results with some rows replaced; rows of mutations that are
    gone are removed, too."""
    header, *lines = table.splitlines()
    kept = {line.split("\t")[0]: line for line in lines} | rows
    return "\n".join([header, *(kept[name] for name in names if name in kept)]
                     ) + "\n"


def piece_of(mutants: list[Mutant], piece: str) -> list[Mutant]:
    """Piece "3/8": every eighth mutant from the third on, so that those of one
    folder are spread over all pieces."""
    number, pieces = (int(part) for part in piece.split("/"))
    if not 1 <= number <= pieces:
        raise SystemExit(f"--piece: got {piece}, want 1/N to N/N")
    return mutants[number - 1::pieces]


def chosen(mutants: list[Mutant]) -> list[Mutant]:
    names = [name for name in
             os.environ.get("COHORT_MUTANTS", "").split(",") if name]
    known = {mutant.name for mutant in mutants}
    for name in names:
        if name not in known:
            raise SystemExit(f"COHORT_MUTANTS: there is no mutation '{name}'")
    return [mutant for mutant in mutants if not names or mutant.name in names]


def check_control(mutants: list[Mutant], tree: Tree) -> None:
    """Without a bug all tests pass; otherwise a failure would show nothing."""
    tests = sorted({test for mutant in mutants
                    for test in (*mutant.tests, *mutant.slow)})
    tree.make(tuple(tests))
    for test in tests:
        case = tree.fails(test)
        if case is not None:
            raise SystemExit(f"{test} fails without any mutation: {case}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--check", action="store_true",
                        help="only check that every mutation applies")
    parser.add_argument("--tree", type=pathlib.Path,
                        help="where the sources are copied to and changed "
                        "(build/mutants/tree)")
    parser.add_argument("--build", type=pathlib.Path,
                        help="build folder of that tree (build/mutants/build)")
    parser.add_argument("--write-table", action="store_true",
                        help="enter the results into results.tsv")
    parser.add_argument("--skip-control", action="store_true",
                        help="do not run the tests without any mutation first")
    parser.add_argument("--piece", default="1/1",
                        help="only these: 3/8 is the third of eight pieces")
    given = parser.parse_args()
    root = given.root.resolve()

    found = problems(root)
    for problem in found:
        print(problem)
    if found or given.check:
        return 1 if found else 0

    folder = root / "build/mutants"
    tree = Tree(path=given.tree or folder / "tree",
                build=given.build or folder / "build",
                jobs=os.cpu_count() or 1)
    every = load(root / "tests/mutants/mutations")
    mutants = piece_of(chosen(every), given.piece)
    copy_tree(root, tree.path)
    tree.configure()
    if not given.skip_control:
        check_control(mutants, tree)
    outcomes = []
    for mutant in mutants:
        outcomes.append(try_mutant(mutant, tree))
        print(row(outcomes[-1]), flush=True)
        if given.write_table:
            table = root / "tests/mutants/results.tsv"
            table.write_text(with_rows(
                table.read_text(), {mutant.name: row(outcomes[-1])},
                [other.name for other in every]))
    missed = [outcome for outcome in outcomes if not outcome.test]
    for outcome in missed:
        print(f"{outcome.mutant.name}: no test found it: "
              f"{', '.join(outcome.missed)} passed")
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} mutations caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
