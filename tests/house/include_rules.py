#!/usr/bin/env python3
"""Enforces the dependency table: which files may include which.

Reads every #include of the tree's C++ and CUDA files. A row of RULES covers
the files of one folder; all rows that match a file apply to it. A row's
forbidden libraries are also searched through the project's own headers,
because a header that includes gRPC gives it to every file that includes it.

Prints one line a violation and exits with 1 if there is any.
"""

import dataclasses
import pathlib
import re
import sys

import source_tree

TOP_FOLDERS = frozenset({"common", "kernels", "server", "worker", "tests"})

# First match wins. A header outside this list is refused, so each new library
# is entered here first, which forces a decision about its place in the table.
LIBRARIES = (
    ("grpc", r"(grpc|grpcpp|grpc\+\+)/|.*\.grpc\.pb\.h$"),
    ("protobuf", r"google/protobuf/|.*\.pb\.h$"),
    ("torch", r"(torch|ATen|c10|caffe2)/"),
    ("cuda", r"cuda|cublas|cudnn|curand|nccl|nvtx|cub/|thrust/|cooperative_"),
    ("absl/time/clock", r"absl/time/clock\.h"),
    ("absl/synchronization", r"absl/synchronization/"),
    ("absl/random", r"absl/random/"),
    ("absl", r"absl/"),
    ("highway", r"hwy/"),
    ("json", r"nlohmann/"),
    ("http", r"(microhttpd\.h|gnutls/)"),
    ("prometheus", r"prometheus/"),
    ("zlib", r"(zlib|zconf)\.h"),
    ("xxhash", r"(xxhash|xxh_x86dispatch)\.h"),
    ("openssl", r"openssl/"),
    ("nanobind", r"nanobind/"),
    ("images", r"(png|jpeglib|jerror)\.h"),
    ("tests", r"(gtest|gmock|benchmark)/"),
    ("std threads", r"(thread|mutex|shared_mutex|condition_variable|future|"
                    r"atomic|latch|barrier|semaphore|stop_token)$"),
    ("std files", r"(fstream|filesystem)$"),
    ("std chrono", r"(chrono|ctime)$"),
    ("std chance", r"random$"),
    ("std", r"[a-z_]+$"),
    ("system", r"(sys|netinet|arpa|linux)/[a-z0-9_]+\.h$|"
               r"(unistd|fcntl|dirent|poll|signal|netdb|pthread|spawn|dlfcn|"
               r"sched|pwd|immintrin|getopt|termios|endian|errno|time|stdio|"
               r"stdlib|malloc|ucontext|setjmp)\.h$"),
)

@dataclasses.dataclass(frozen=True)
class Rule:
    """The includes that are forbidden for the files in `folder`, and why.

    libraries: names of LIBRARIES, refused directly and through our headers.
    direct: names of LIBRARIES, refused as direct includes only.
    folders: folders or files of the tree, refused as direct includes;
      `except_folders` takes a part of them out again.
    except_in: sub-folders that this row does not cover.
    suffixes: of the files that this row covers; if empty, all.
    """

    folder: str
    why: str
    libraries: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    except_folders: tuple[str, ...] = ()
    except_in: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()


RULES = (
    Rule("", "nothing outside tests/ uses the tests",
         libraries=("tests",), folders=("tests",), except_in=("tests",)),
    Rule("common", "common/ lies below everything else",
         folders=("kernels", "server", "worker")),
    Rule("common", "common/ (top) is the standard library and Abseil only",
         libraries=("grpc", "protobuf", "torch", "cuda", "highway", "json",
                    "http", "prometheus"),
         folders=("common/wire", "common/log", "common/formats", "common/ops",
                  "common/cli", "common/local", "common/security"),
         except_in=("common/wire", "common/log", "common/formats",
                    "common/ops", "common/cli", "common/local",
                    "common/security")),
    Rule("common/local", "shared memory knows no transport and no engine",
         libraries=("grpc", "protobuf", "torch", "cuda"),
         folders=("common/wire", "common/log", "common/ops", "common/cli")),
    Rule("common/log", "logging knows no transport and no engine",
         libraries=("grpc", "protobuf", "torch", "cuda")),
    Rule("common/formats", "file formats know no transport and no engine",
         libraries=("grpc", "protobuf", "torch", "cuda")),
    Rule("common/ops", "the operations port knows no transport and no engine",
         libraries=("grpc", "protobuf", "torch", "cuda")),
    Rule("common/security", "certificates and rights know no transport and no "
         "engine",
         libraries=("grpc", "protobuf", "torch", "cuda", "http"),
         folders=("common/wire", "common/log", "common/ops", "common/cli")),
    Rule("common/cli", "command line and environment know no transport",
         libraries=("grpc", "protobuf", "torch", "cuda")),
    Rule("common/wire", "the wire knows no engine",
         libraries=("torch", "cuda")),
    Rule("kernels", "kernels are raw memory and arithmetic",
         libraries=("grpc", "protobuf", "torch", "prometheus"),
         folders=("common/wire", "common/log", "common/formats", "common/ops",
                  "common/cli", "server", "worker")),
    Rule("kernels", "CUDA stays in kernels/cuda",
         libraries=("cuda",), except_in=("kernels/cuda",)),
    Rule("kernels/cuda", "CUDA sources see plain data, sizes and a stream",
         libraries=("absl", "highway"), suffixes=(".cu", ".cuh")),
    Rule("server", "server and worker never include each other",
         libraries=("torch",), folders=("worker",)),
    Rule("server/core", "the core is a state machine without libraries",
         libraries=("grpc", "protobuf", "cuda", "highway", "json",
                    "http", "prometheus", "zlib", "openssl", "images"),
         folders=("common/wire", "common/log", "common/formats", "common/ops",
                  "common/cli", "server"),
         except_folders=("server/core",)),
    # Direct only: the buffer pool that the core borrows from locks inside.
    Rule("server/core", "the core has no threads, clocks, files or chance",
         direct=("std threads", "std files", "std chrono", "std chance",
                 "absl/random", "absl/time/clock", "absl/synchronization",
                 "system"),
         folders=("common/mutex.h", "common/periodic_task.h",
                  "common/thread_pool.h")),
    Rule("server/checkpoint", "checkpoints see the core's snapshots only",
         libraries=("grpc",),
         folders=("server",),
         except_folders=("server/checkpoint", "server/core")),
    Rule("server/metrics", "metrics see the core's snapshots only",
         libraries=("grpc", "protobuf"),
         folders=("server",),
         except_folders=("server/metrics", "server/core")),
    Rule("server/status", "the status is made from the figures of the metrics",
         libraries=("grpc", "http"),
         folders=("server",),
         except_folders=("server/status", "server/metrics", "server/core")),
    Rule("server/status_page", "the page shows the status",
         libraries=("grpc", "protobuf"),
         folders=("server",),
         except_folders=("server/status_page", "server/status",
                         "server/metrics", "server/core")),
    Rule("server/access", "rights know no transport",
         libraries=("grpc", "protobuf", "torch", "cuda", "http"),
         folders=("common/wire", "common/ops", "common/cli", "server"),
         except_folders=("server/access",)),
    *(Rule(folder, "the hosts run under the thread sanitizer, which knows "
           "nothing of gRPC's own locks",
           libraries=("grpc", "protobuf", "http"),
           folders=("common/wire", "common/ops", "server"),
           except_folders=(folder, "server/core", *below))
      for folder, below in (
          ("server/streams", ()),
          ("server/partitions", ("server/streams", "server/metrics")),
          ("server/run", ("server/partitions", "server/streams",
                          "server/metrics")))),
    Rule("server/local", "shared memory knows no transport and no core",
         libraries=("grpc", "protobuf", "http"),
         folders=("common/wire", "common/ops", "common/cli", "server"),
         except_folders=("server/local",)),
    Rule("server/records", "files are written from the core's snapshots",
         libraries=("grpc", "protobuf", "http"),
         folders=("common/wire", "common/ops", "server"),
         except_folders=("server/records", "server/core", "server/metrics",
                         "server/checkpoint")),
    Rule("server/rpc", "streams and services translate for the shard",
         libraries=("http",),
         folders=("server",),
         except_folders=("server/rpc", "server/access", "server/local",
                         "server/run", "server/partitions", "server/streams",
                         "server/core", "server/metrics", "server/status")),
    Rule("server/ops", "the operations port speaks HTTP only",
         libraries=("grpc", "protobuf"),
         folders=("server/rpc", "server/main")),
    Rule("server/ctl", "cohortctl speaks to the server over the wire only; "
         "completion reads the one table of settings",
         folders=("server",),
         except_folders=("server/ctl", "server/core/settings/settings.h")),
    Rule("worker", "server and worker never include each other",
         folders=("server",)),
    Rule("worker/client", "other front-ends sit on the client: no engine",
         libraries=("torch", "cuda"),
         folders=("kernels", "worker"), except_folders=("worker/client",)),
    Rule("worker/metrics", "a worker's metrics know no engine and no wire",
         libraries=("grpc", "protobuf", "torch", "cuda"),
         folders=("common/wire", "kernels", "worker"),
         except_folders=("worker/metrics",)),
    Rule("worker/telemetry", "other front-ends use it too: no engine",
         libraries=("torch", "cuda"), folders=("kernels",)),
    Rule("worker/session", "both front-ends sit on the session: no engine",
         libraries=("torch", "cuda"),
         folders=("kernels", "worker"),
         except_folders=("worker/session", "worker/client",
                         "worker/telemetry",
                         "worker/batch_norm/rendezvous.h")),
    Rule("worker/python", "one build serves every torch",
         libraries=("torch", "cuda")),
    *(Rule(folder, "only worker/client speaks gRPC",
           libraries=("grpc", "protobuf"), folders=("common/wire",))
      for folder in ("worker/python", "worker/session", "worker/telemetry",
                     "worker/train", "worker/batch_norm", "worker/models",
                     "worker/datasets", "worker/device")),
    Rule("worker", "the CUDA runtime is spoken to in kernels/cuda only",
         direct=("cuda",)),
)

# The folders of the core, from the lowest up: a file includes files of its own
# folder and of those before it. What lies in no folder is the top.
CORE_FLOORS = {name: at for at, name in enumerate((
    "settings", "policy", "statistics", "optimizer", "model", "events",
    "ledger", "membership", "evaluation", "step"))}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)


def library_of(header: str) -> str | None:
    """Names the library a header belongs to; None if it is not in the list."""
    for name, pattern in LIBRARIES:
        if re.match(pattern, header):
            return name
    return None


class IncludeGraph:
    """The tree's own includes, each file read once."""

    def __init__(self, root: pathlib.Path):
        self._includes: dict[str, list[tuple[str, str]]] = {}
        for path in source_tree.files(root):
            if path.suffix in (".h", ".inc", ".cc", ".cu", ".cuh"):
                self._includes[str(path)] = INCLUDE.findall(
                    source_tree.text(root, path))

    def files(self) -> list[str]:
        return list(self._includes)

    def includes(self, file: str) -> list[tuple[str, str]]:
        """(quote or angle, header) of each #include, in order."""
        return self._includes.get(file, [])

    def has(self, file: str) -> bool:
        return file in self._includes

    def library_chains(self, file: str) -> dict[str, list[str]]:
        """For each library header reached from file, one shortest chain."""
        chains: dict[str, list[str]] = {}
        seen = {file}
        queue = [[file]]
        for chain in queue:  # Grows while it is walked: breadth first.
            for _, header in self.includes(chain[-1]):
                if self.has(header):
                    if header not in seen:
                        seen.add(header)
                        queue.append([*chain, header])
                else:
                    chains.setdefault(header, [*chain, header])
        return chains


def applies(rule: Rule, file: str) -> bool:
    path = pathlib.PurePosixPath(file)
    return (source_tree.is_under(path, rule.folder) and
            (not rule.suffixes or path.suffix in rule.suffixes) and
            not any(source_tree.is_under(path, f) for f in rule.except_in))


def spelling_violations(graph: IncludeGraph, file: str) -> list[str]:
    """Includes that are not from the root, lead nowhere or are unknown."""
    found = []
    for mark, header in graph.includes(file):
        if graph.has(header):
            if mark == "<":
                found.append(f'{file}: <{header}> is ours, write "{header}"')
        elif header.split("/")[0] in TOP_FOLDERS:
            found.append(f"{file}: {header} does not exist")
        elif ".." in header.split("/") or library_of(header) is None:
            found.append(f"{file}: {header} is neither a path from the root "
                         "nor of a library named in include_rules.py")
    return found


def rule_violations(graph: IncludeGraph, rule: Rule, file: str) -> list[str]:
    found = []
    for header, chain in graph.library_chains(file).items():
        if library_of(header) in rule.libraries:
            found.append(f"{' -> '.join(chain)}: {rule.why}")
    for _, header in graph.includes(file):
        if library_of(header) in rule.direct and not graph.has(header):
            found.append(f"{file} -> {header}: {rule.why}")
        path = pathlib.PurePosixPath(header)
        refused = any(source_tree.is_under(path, f) for f in rule.folders)
        taken_out = any(
            source_tree.is_under(path, f) for f in rule.except_folders)
        if graph.has(header) and refused and not taken_out:
            found.append(f"{file} -> {header}: {rule.why}")
    return found


def core_floor(file: str) -> int:
    """-1 for a file outside the core; above all for a folder not listed."""
    parts = pathlib.PurePosixPath(file).parts
    if parts[:2] != ("server", "core"):
        return -1
    if len(parts) == 3:
        return len(CORE_FLOORS)
    return CORE_FLOORS.get(parts[2], len(CORE_FLOORS) + 1)


def floor_violations(graph: IncludeGraph, file: str) -> list[str]:
    return [f"{file} -> {header}: a floor of the core includes those below it"
            for _, header in graph.includes(file)
            if core_floor(header) > core_floor(file) >= 0]


def violations(root: pathlib.Path) -> list[str]:
    """Returns one sentence for each include that breaks the table."""
    graph = IncludeGraph(root)
    found = []
    for file in graph.files():
        found += spelling_violations(graph, file)
        found += floor_violations(graph, file)
        for rule in RULES:
            if applies(rule, file):
                found += rule_violations(graph, rule, file)
    return found


def main() -> int:
    return source_tree.report(
        __doc__, violations, lambda root: len(IncludeGraph(root).files()),
        "include rules: {count} files read, {found} violations")


if __name__ == "__main__":
    sys.exit(main())
