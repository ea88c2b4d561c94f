#!/usr/bin/env python3
"""Shows on small trees that every house rule can fail, and can pass."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import include_rules
import link_rules
import prose_rules
import size_rules
import style_rules
import test_rules
import torch_ceiling

HERE = pathlib.Path(__file__).parent


class TreeTest(unittest.TestCase):
    """Writes a tree into a temporary folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def write_headers(self, *paths: str) -> None:
        for path in paths:
            self.write(path, "#pragma once\n")


class IncludeRulesTest(TreeTest):
    # (the including file, what it includes, a word of the reason)
    FORBIDDEN = (
        ("common/a.cc", "gtest/gtest.h", "nothing outside tests/"),
        ("server/core/a.cc", "tests/x.h", "nothing outside tests/"),
        ("common/a.h", "kernels/x.h", "below everything"),
        ("common/a.h", "server/x.h", "below everything"),
        ("common/wire/a.h", "worker/x.h", "below everything"),
        ("common/a.h", "google/protobuf/message.h", "common/ (top)"),
        ("common/a.h", "grpcpp/grpcpp.h", "common/ (top)"),
        ("common/a.h", "torch/torch.h", "common/ (top)"),
        ("common/a.h", "cuda_runtime.h", "common/ (top)"),
        ("common/a.h", "nlohmann/json.hpp", "common/ (top)"),
        ("common/a.h", "common/wire/x.h", "common/ (top)"),
        ("common/a.h", "common/log/x.h", "common/ (top)"),
        ("common/log/a.h", "grpcpp/grpcpp.h", "logging knows"),
        ("common/formats/a.h", "torch/torch.h", "file formats know"),
        ("common/ops/a.h", "grpcpp/grpcpp.h", "operations port"),
        ("common/cli/a.h", "grpcpp/grpcpp.h", "command line and environment"),
        ("common/wire/a.h", "torch/torch.h", "the wire"),
        ("kernels/a.h", "cohort/v1/types.pb.h", "kernels are"),
        ("kernels/cpu/a.cc", "common/wire/x.h", "kernels are"),
        ("kernels/a.cc", "server/x.h", "kernels are"),
        ("kernels/cpu/a.cc", "cuda_runtime.h", "kernels/cuda"),
        ("kernels/cuda/a.cu", "absl/status/status.h", "plain data"),
        ("kernels/cuda/a.cuh", "absl/status/status.h", "plain data"),
        ("server/rpc/a.cc", "worker/x.h", "never include each other"),
        ("server/rpc/a.cc", "torch/torch.h", "never include each other"),
        ("server/core/a.h", "cohort/v1/x.grpc.pb.h", "without libraries"),
        ("server/core/a.h", "nlohmann/json.hpp", "without libraries"),
        ("server/core/a.h", "common/wire/x.h", "without libraries"),
        ("server/core/a.h", "common/formats/x.h", "without libraries"),
        ("server/core/a.h", "server/x.h", "without libraries"),
        ("server/core/a.h", "thread", "no threads, clocks"),
        ("server/core/a.h", "mutex", "no threads, clocks"),
        ("server/core/a.h", "fstream", "no threads, clocks"),
        ("server/core/a.h", "filesystem", "no threads, clocks"),
        ("server/core/a.h", "chrono", "no threads, clocks"),
        ("server/core/a.h", "random", "no threads, clocks"),
        ("server/core/a.h", "unistd.h", "no threads, clocks"),
        ("server/core/a.h", "absl/time/clock.h", "no threads, clocks"),
        ("server/core/a.h", "absl/synchronization/mutex.h", "no threads"),
        ("server/core/a.h", "common/mutex.h", "no threads, clocks"),
        ("server/checkpoint/a.h", "grpcpp/grpcpp.h", "checkpoints see"),
        ("server/checkpoint/a.h", "server/run/x.h", "checkpoints see"),
        ("server/metrics/a.h", "server/checkpoint/x.h", "metrics see"),
        ("server/access/a.cc", "grpcpp/grpcpp.h", "rights know no transport"),
        ("common/security/a.cc", "grpcpp/grpcpp.h", "certificates and rights"),
        ("server/run/a.cc", "grpcpp/grpcpp.h", "thread sanitizer"),
        ("server/run/a.h", "server/rpc/x.h", "thread sanitizer"),
        ("server/records/a.cc", "server/run/x.h", "files are written"),
        ("server/rpc/a.cc", "server/records/x.h", "streams and services"),
        ("server/ops/a.cc", "grpcpp/grpcpp.h", "speaks HTTP only"),
        ("server/ops/a.cc", "server/main/x.h", "speaks HTTP only"),
        ("server/status/a.h", "server/records/x.h", "from the figures"),
        ("server/status/a.cc", "grpcpp/grpcpp.h", "from the figures"),
        ("server/status_page/a.h", "server/records/x.h", "the page shows"),
        ("server/ctl/a.cc", "server/main/x.h", "over the wire only"),
        ("common/local/a.h", "grpcpp/grpcpp.h", "no transport and no engine"),
        ("server/local/a.h", "server/core/x.h", "no transport and no core"),
        ("worker/train/a.cc", "server/x.h", "never include each other"),
        ("worker/client/a.h", "torch/torch.h", "no engine"),
        ("worker/client/a.h", "kernels/x.h", "no engine"),
        ("worker/client/a.h", "worker/x.h", "no engine"),
        ("worker/session/a.h", "torch/torch.h", "no engine"),
        ("worker/metrics/a.h", "torch/torch.h", "a worker's metrics"),
        ("worker/metrics/a.h", "worker/x.h", "a worker's metrics"),
        ("worker/telemetry/a.h", "torch/torch.h", "other front-ends use it"),
        ("worker/python/a.cc", "torch/torch.h", "serves every torch"),
        ("worker/python/a.cc", "grpcpp/grpcpp.h", "speaks gRPC"),
        ("server/core/policy/a.h", "server/core/x.h", "those below it"),
        ("server/core/policy/a.cc", "server/core/step/x.h", "those below it"),
        ("server/core/a.h", "server/core/attic/x.h", "those below it"),
        ("worker/train/a.h", "grpcpp/grpcpp.h", "speaks gRPC"),
        ("worker/batch_norm/a.h", "grpcpp/grpcpp.h", "speaks gRPC"),
        ("worker/models/a.h", "grpcpp/grpcpp.h", "speaks gRPC"),
        ("worker/datasets/a.h", "common/wire/x.h", "speaks gRPC"),
    )

    ALLOWED = (
        ("common/a.h", "absl/status/status.h"),
        ("common/a.h", "mutex"),
        ("common/log/a.cc", "nlohmann/json.hpp"),
        ("common/wire/a.cc", "grpcpp/grpcpp.h"),
        ("kernels/cpu/a.cc", "hwy/highway.h"),
        ("kernels/cuda/a.cu", "cuda_runtime.h"),
        ("kernels/cuda/a.cc", "absl/status/status.h"),
        ("server/core/a.h", "absl/time/time.h"),
        ("server/core/a.h", "server/core/x.h"),
        ("server/core/a.h", "server/core/step/x.h"),
        ("server/core/step/a.h", "server/core/step/x.h"),
        ("server/core/step/a.h", "server/core/policy/x.h"),
        ("server/core/a.h", "kernels/x.h"),
        ("server/core/a.h", "common/x.h"),
        ("server/rpc/a.cc", "server/core/x.h"),
        ("server/rpc/a.cc", "server/run/x.h"),
        ("server/run/a.cc", "mutex"),
        ("server/ctl/a.cc", "server/ctl/x.h"),
        ("worker/client/a.cc", "grpcpp/grpcpp.h"),
        ("worker/metrics/a.h", "prometheus/registry.h"),
        ("worker/train/a.cc", "torch/torch.h"),
        ("worker/train/a.cc", "worker/client/x.h"),
        ("worker/python/a.cc", "nanobind/nanobind.h"),
        ("worker/python/a.cc", "worker/client/x.h"),
        ("worker/session/a.h", "worker/client/x.h"),
        ("tests/core/a.cc", "gtest/gtest.h"),
        ("tests/integration/a.cc", "worker/x.h"),
    )

    def setUp(self):
        super().setUp()
        self.write_headers(
            "common/x.h", "common/mutex.h", "common/wire/x.h",
            "common/log/x.h", "common/formats/x.h", "kernels/x.h",
            "server/x.h", "server/core/x.h", "server/core/policy/x.h",
            "server/core/step/x.h", "server/core/attic/x.h", "server/main/x.h",
            "server/run/x.h", "server/rpc/x.h", "server/records/x.h",
            "server/checkpoint/x.h", "server/metrics/x.h", "server/ctl/x.h",
            "worker/x.h", "worker/client/x.h", "tests/x.h")

    def test_each_forbidden_include_is_found_with_its_reason(self):
        for file, header, reason in self.FORBIDDEN:
            with self.subTest(file=file, header=header):
                self.write(file, f'#include "{header}"\n')
                found = include_rules.violations(self.root)
                (self.root / file).unlink()
                self.assertTrue(
                    any(reason in line and file in line and header in line
                        for line in found), found)

    def test_each_allowed_include_passes(self):
        for file, header in self.ALLOWED:
            with self.subTest(file=file, header=header):
                self.write(file, f'#include "{header}"\n')
                found = include_rules.violations(self.root)
                (self.root / file).unlink()
                self.assertEqual(found, [])

    def test_every_rule_is_shown_to_fail(self):
        reasons = [reason for _, _, reason in self.FORBIDDEN]
        for rule in include_rules.RULES:
            with self.subTest(rule=rule.why):
                self.assertTrue(any(reason in rule.why for reason in reasons))

    def test_library_reached_through_our_header_is_found_with_the_chain(self):
        self.write("worker/client/y.h", "#include <grpcpp/grpcpp.h>\n")
        self.write("worker/train/a.cc", '#include "worker/client/y.h"\n')
        self.assertEqual(
            include_rules.violations(self.root),
            ["worker/train/a.cc -> worker/client/y.h -> grpcpp/grpcpp.h: "
             "only worker/client speaks gRPC"])

    def test_header_that_does_not_exist_is_found(self):
        self.write("common/a.cc", '#include "common/absent.h"\n')
        self.assertEqual(include_rules.violations(self.root),
                         ["common/a.cc: common/absent.h does not exist"])

    def test_path_that_is_not_from_the_root_is_found(self):
        self.write("common/a.cc", '#include "x.h"\n#include "../x.h"\n')
        self.assertEqual(len(include_rules.violations(self.root)), 2)

    def test_angle_brackets_around_our_header_are_found(self):
        self.write("common/a.cc", "#include <common/x.h>\n")
        self.assertIn("is ours", include_rules.violations(self.root)[0])

    def test_unknown_library_is_found(self):
        self.write("server/core/a.cc", "#include <Eigen/Core>\n")
        self.assertIn("named in include_rules.py",
                      include_rules.violations(self.root)[0])

    def test_spaces_around_the_directive_do_not_hide_it(self):
        self.write("kernels/a.cc", '  #  include  <torch/torch.h>\n')
        self.assertEqual(len(include_rules.violations(self.root)), 1)


class StyleRulesTest(TreeTest):
    # (file, text, a word of the message)
    FORBIDDEN = (
        ("common/a.cc", "int x;", "newline"),
        ("common/a.h", "int x;\n", "#pragma once"),
        ("common/a.cc", "// TODO: later\n", "issue number"),
        ("common/a.cc", "// FIXME(me): later\n", "issue number"),
        ("README.md", "see /home/me/x\n", "one machine"),
        ("deploy/run", "cd " + "/".join(["", "work", "main"]) + "\n", "one machine"),
        ("server/a.cc", "std::this_thread::sleep_for(x);\n", "sleep_for"),
        ("server/a.cc", "absl::SleepFor(x);\n", "SleepFor"),
        ("tests/core/a.cc", "usleep(3);\n", "usleep"),
        ("common/a.cc", "std::thread t(f);\nt.detach();\n", "nobody joins"),
        ("tests/core/a.cc", "std::jthread(f).detach();\n", "nobody joins"),
        ("worker/a.cc", "std::thread t(f);\n", "joined tasks"),
        ("worker/a.cc", "auto f = std::async(g);\n", "joined tasks"),
        ("tests/core/a.cc", "TEST(A, DISABLED_B) {}\n", "names its issue"),
        ("tests/gpu/a.cc", "GTEST_SKIP();\n", "prints its reason"),
    )

    ALLOWED = (
        ("common/a.h", "#pragma once\n"),
        ("kernels/a_inl.h", "#if defined(HWY_TARGET_TOGGLE)\n#endif\n"),
        ("common/a.cc", "// TODO(#12): later\n"),
        ("README.md", "/usr/share/datasets and $HOME/work/x, a/home/b\n"),
        ("common/task.cc", "std::thread t(f);\n"),
        ("server/a.cc", "// std::thread would need a join.\n"),
        ("server/a.cc", 'Fail("sleep_for(1)");\n'),
        ("tests/worker/a.cc", "std::thread t(f);\nEq(x.detach(), y);\n"),
        ("tests/core/a.cc", "std::thread t(f);\nt.join();\n"),
        ("tests/core/a.cc", "TEST(A, DISABLED_B) {}  // #12\n"),
        ("tests/gpu/a.cc", 'GTEST_SKIP() << "no GPU";\n'),
    )

    def test_each_violation_is_found_with_its_message(self):
        for file, text, message in self.FORBIDDEN:
            with self.subTest(file=file, text=text[:30]):
                self.write(file, text)
                found = style_rules.violations(self.root)
                (self.root / file).unlink()
                self.assertEqual(len(found), 1, found)
                self.assertIn(file, found[0])
                self.assertIn(message, found[0])

    def test_each_allowed_text_passes(self):
        for file, text in self.ALLOWED:
            with self.subTest(file=file, text=text[:30]):
                self.write(file, text)
                found = style_rules.violations(self.root)
                (self.root / file).unlink()
                self.assertEqual(found, [])

    def test_violation_names_its_line(self):
        self.write("server/a.cc", "/* one\ntwo */\nusleep(3);\n")
        self.assertEqual(
            style_rules.violations(self.root),
            ["server/a.cc:3: 'usleep(': wait on a clock or a condition "
             "instead"])

    def test_build_folders_are_not_read(self):
        self.write("build/release/a.cc", "usleep(3);\n")
        self.write("results/run/a.txt", "/home/me/x")
        self.assertEqual(style_rules.violations(self.root), [])


class SizeRulesTest(TreeTest):
    CLASS = ("namespace a {\nclass Big final : public Base {\n public:\n"
             "  Big();\n  ~Big() override;\n  bool operator==(const Big&) const;\n"
             "%s private:\n  void Hidden();\n};\n}  // namespace a\n")

    def write_class(self, methods: int) -> None:
        self.write("server/big.h", self.CLASS % "".join(
            f"  int Get{i}() const {{ return {i}; }}\n  void Set{i}(\n      int i);\n"
            for i in range(methods // 2)))

    def found(self, *lines: str) -> list[str]:
        self.write("tests/house/sizes.tsv", "\n".join(
            ["kind\tname\tmost\twhy", *lines]) + "\n")
        return size_rules.violations(self.root)

    def test_public_methods_are_counted(self):
        self.write_class(24)
        self.assertEqual(self.found("lines\tserver\t100\t"), [])
        self.write_class(26)
        self.assertEqual(self.found("lines\tserver\t100\t"),
                         ["Big: 26 methods, want fewer"])
        allowed = "lines\tserver\t100\t", "methods\tBig\t26\tevents"
        self.assertEqual(self.found(*allowed), [])
        self.write_class(24)
        self.assertIn("remove the line", self.found(*allowed)[0])

    def test_sources_are_counted(self):
        self.write_class(2)
        for name in ("one", "two"):
            self.write(f"server/{name}.cc",
                       f"void Big::{name}(int i) {{\n  Other::Call(i);\n}}\n")
        self.assertEqual(self.found("lines\tserver\t100\t"),
                         ["Big: 2 sources, want fewer"])

    def test_long_readme_is_found(self):
        self.write("README.md", "word " * 900)
        self.write("server/README.md", "word " * 901)
        self.assertEqual(self.found(), ["server/README.md: 901 words, want fewer"])

    def test_lines_of_code_have_a_budget(self):
        self.write("worker/a.py", '"""Two\nlines."""\n\n# no\nx = 1\ny = 2\n')
        self.assertEqual(self.found("lines\tworker\t2\t"), [])
        self.assertIn("2 lines", self.found("lines\tworker\t1\t")[0])
        self.assertIn("want a line", self.found()[0])


class OneDefinitionTest(TreeTest):
    STREAM = ("#pragma once\nnamespace a {\n%s\n}  // namespace a\n")

    def found(self, first: str, second: str) -> list[str]:
        self.write("server/x.h", self.STREAM % first)
        self.write("worker/y.h", self.STREAM % second)
        return style_rules.violations(self.root)

    def test_types_of_one_name_in_two_headers_are_found(self):
        for second in ("class Stream {\n};", "struct Stream {\n};",
                       "class Stream final : public Base {\n};",
                       "class ABSL_LOCKABLE Stream {\n};",
                       "enum class Stream { kOne };",
                       "template <typename T>\nclass Stream\n    : Base {};"):
            with self.subTest(second=second):
                self.assertEqual(
                    self.found("class Stream {};", second),
                    [f"worker/y.h:{3 + second.startswith('template')}: "
                     "a::Stream: server/x.h defines it too"])

    def test_declarations_nested_types_and_tests_pass(self):
        self.write("tests/z.h", self.STREAM % "class Stream {};")
        for second in ("class Stream;", "struct Other {\n  class Stream {};\n};",
                       "// class Stream {"):
            with self.subTest(second=second):
                self.assertEqual(self.found("class Stream {};", second), [])

    def test_another_namespace_passes(self):
        self.write("server/x.h", self.STREAM % "class Stream {};")
        self.write("kernels/y.h", "#pragma once\nnamespace {\n}  // namespace"
                   "\nnamespace a {\nnamespace b {\nclass Stream {};\n"
                   "}  // namespace b\n}  // namespace a\n")
        self.assertEqual(style_rules.violations(self.root), [])


class TorchCeilingTest(TreeTest):
    def write_sources(self, folder: str, count: int) -> None:
        for i in range(count):
            self.write(f"{folder}/a{i}.cc", "#include <torch/torch.h>\n")

    def test_as_many_files_as_the_ceiling_pass(self):
        for folder, ceiling in torch_ceiling.CEILINGS.items():
            self.write_sources(folder, ceiling)
        self.assertEqual(torch_ceiling.violations(self.root), [])

    def test_one_more_is_found_in_each_folder(self):
        for folder, ceiling in torch_ceiling.CEILINGS.items():
            self.write_sources(folder, ceiling + 1)
        found = torch_ceiling.violations(self.root)
        self.assertEqual(len(found), len(torch_ceiling.CEILINGS))
        most = torch_ceiling.CEILINGS["worker/train"]
        self.assertTrue(any(line.startswith(
            f"worker/train: {most + 1} source files reach LibTorch's headers, "
            f"want at most {most}") for line in found), found)

    def test_folder_that_is_not_listed_may_have_none(self):
        self.write_sources("worker/datasets", 1)
        self.assertIn("want at most 0",
                      torch_ceiling.violations(self.root)[0])

    def test_file_that_reaches_it_through_our_header_counts(self):
        self.write("worker/train/x.h", "#include <ATen/ATen.h>\n")
        self.write("worker/datasets/a.cc", '#include "worker/train/x.h"\n')
        self.assertIn("datasets/a.cc", torch_ceiling.violations(self.root)[0])

    def test_headers_are_not_counted_but_their_readers(self):
        self.write("worker/datasets/x.h", "#include <torch/torch.h>\n")
        self.assertEqual(torch_ceiling.violations(self.root), [])


class LinkRulesTest(TreeTest):
    def violations(self, page: str) -> list[str]:
        self.write("server/README.md", "# The server\n\n## How it works\n")
        self.write("README.md", page)
        return link_rules.violations(self.root)

    def test_files_and_headings_that_exist_pass(self):
        self.assertEqual(self.violations(
            "# Top\n[a](server/README.md) [b](server/README.md#how-it-works) "
            "[c](#top) [d](https://example.org/x)\n"
            "    code is [no](link)\n"), [])

    def test_missing_file_heading_and_picture_are_found(self):
        found = self.violations("[a](gone.md) [b](server/README.md#gone)\n"
                                '<img src="gone.png">\n')
        self.assertEqual(len(found), 3)
        for line, part in zip(found, ("gone.md", "no heading", "gone.png")):
            self.assertIn(part, line)

    def test_missing_paths_in_backticks_are_found(self):
        self.write("server/core/a.cc", "int x;\n")
        self.assertEqual(self.violations(
            "`server/core/a.cc`, `server/core/a`, `server/core/`, "
            "`server/*/a.*`, `server/0`, `int8/int4`\n"
            "    `server/gone.cc`, in code\n"), [])
        found = self.violations("`server/gone.cc`, `server/core/*.h`\n")
        self.assertEqual(len(found), 2)


class TestRulesTest(TreeTest):
    def violations(self, *rows: str) -> list[str]:
        self.write("tests/house/tested_in.tsv",
                   "\n".join(["source\ttests", *rows]) + "\n")
        return test_rules.violations(self.root)

    def test_test_of_its_name_or_a_row_passes(self):
        for path in ("server/a.cc", "server/x/b.cc", "server/run_main.cc",
                     "tests/a_test.cc", "tests/d_test.cc", "tests/fake.cc"):
            self.write(path, "int x;\n")
        self.assertEqual(
            self.violations("server/x/b.cc\ttests/d_test.cc"), [])

    def test_source_without_a_test_is_found(self):
        self.write("server/a.cc", "int x;\n")
        self.assertIn("has no a_test.cc", self.violations()[0])

    def test_test_and_source_that_do_not_exist_are_found(self):
        self.write("server/b.cc", "int x;\n")
        self.assertEqual(
            self.violations("server/b.cc\ttests/d_test.cc",
                            "server/gone.cc\ttests/d_test.cc"),
            ["tests/house/tested_in.tsv: tests/d_test.cc does not exist",
             "tests/house/tested_in.tsv: server/gone.cc does not exist"])

    def test_row_that_is_not_needed_is_found(self):
        self.write("server/a.cc", "int x;\n")
        self.write("tests/a_test.cc", "int x;\n")
        self.assertIn("remove the row",
                      self.violations("server/a.cc\ttests/a_test.cc")[0])


class ProseRulesTest(TreeTest):
    def found(self, pages: int, sources: int) -> list[str]:
        self.write("tests/house/prose.tsv", "word\tinstead\tpages\tsources\n"
                   f"told|was told\treceives\t{pages}\t{sources}\n")
        return prose_rules.violations(self.root)

    def test_words_are_counted_in_pages_and_in_comments_and_strings(self):
        self.write("README.md", "It is told. Untold.\n")
        self.write("server/FLAGS.md", "told\n")
        self.write("server/a.cc", "// Is told.\nbool told = F(\"told\");\n")
        self.write("server/a.py", '"""Told: told."""\ntold = 1  # told\n')
        self.assertEqual(self.found(1, 4), [])
        self.assertEqual(len(self.found(0, 3)), 2)
        self.assertIn("1 times in pages, want at most 0", self.found(0, 4)[0])


class CommandLineTest(TreeTest):
    SCRIPTS = ("include_rules.py", "style_rules.py", "torch_ceiling.py")

    def exit_code(self, script: str) -> int:
        return subprocess.run(
            [sys.executable, str(HERE / script), f"--root={self.root}"],
            stdout=subprocess.DEVNULL, check=False).returncode

    def test_exit_code_tells_whether_the_tree_is_clean(self):
        self.write("worker/train/a.cc", "#include <torch/torch.h>\n")
        for script in self.SCRIPTS:
            self.assertEqual(self.exit_code(script), 0)
        self.write("server/a.cc",
                   '#include <torch/torch.h>\nusleep(3);\n')
        for script in self.SCRIPTS:
            self.assertEqual(self.exit_code(script), 1)

    def test_wrong_root_is_no_success(self):
        for script in self.SCRIPTS:
            self.assertEqual(self.exit_code(script), 1)


if __name__ == "__main__":
    unittest.main()
