#!/usr/bin/env python3
"""Runs a program under the system-call filters of a systemd unit.

    confined.py UNIT PROGRAM [ARGUMENT...]

Applies SystemCallFilter= and MemoryDenyWriteExecute= as systemd would, without
systemd. A call that the filter lacks kills the process, whatever
SystemCallErrorNumber= says, so that a test notices it. x86-64 only.
"""

import ctypes
import functools
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import sys

HEADER = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")

# linux/bpf_common.h, linux/seccomp.h, linux/audit.h
LOAD, JUMP_IF_EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
ALLOW, KILL, EPERM = 0x7FFF0000, 0x80000000, 0x00050001
NUMBER_AT, ARCHITECTURE_AT, THIRD_ARGUMENT_AT = 0, 4, 32
X86_64 = 0xC000003E
SET_NO_NEW_PRIVS, SET_SECCOMP, MODE_FILTER = 38, 22, 2

# What MemoryDenyWriteExecute= refuses: bits of the third argument that must not
# all be set.
WRITABLE_CODE = {"mmap": 0x6, "mprotect": 0x4, "pkey_mprotect": 0x4,
                 "shmat": 0o100000}


def why_not() -> str:
    """Says why no program can be confined here; empty if it can."""
    if platform.machine() != "x86_64":
        return "not an x86-64"
    if shutil.which("systemd-analyze") is None:
        return "no systemd-analyze (apt-get install systemd)"
    if not HEADER.exists():
        return f"no {HEADER} (apt-get install linux-libc-dev)"
    return ""


@functools.cache
def call_sets() -> dict[str, list[str]]:
    """Returns systemd's sets of system calls, by name."""
    text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"],
                          check=True, capture_output=True, text=True).stdout
    sets: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("@"):
            members = sets[line.strip()] = []
        elif line.startswith("    ") and not line.lstrip().startswith("#"):
            members.append(line.strip())
    return sets


def expanded(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    return {call for member in call_sets()[name] for call in expanded(member)}


def allowed_calls(lines: list[str]) -> set[str]:
    """Returns the calls that the values of SystemCallFilter= leave."""
    calls = expanded("@default")
    for line in lines:
        named = {call for name in line.lstrip("~").split()
                 for call in expanded(name)}
        calls = calls - named if line.startswith("~") else calls | named
    return calls


def values(unit: pathlib.Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.M)


def program_of(unit: pathlib.Path) -> bytes:
    """Returns the filter of a unit in the kernel's form."""
    numbers = {name: int(number) for name, number in re.findall(
        r"#define __NR_(\w+) (\d+)", HEADER.read_text(encoding="utf-8"))}
    steps = [(LOAD, 0, 0, ARCHITECTURE_AT), (JUMP_IF_EQUAL, 1, 0, X86_64),
             (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER_AT)]
    if values(unit, "MemoryDenyWriteExecute") == ["yes"]:
        for name, bits in WRITABLE_CODE.items():
            steps += [(JUMP_IF_EQUAL, 0, 4, numbers[name]),
                      (LOAD, 0, 0, THIRD_ARGUMENT_AT), (AND, 0, 0, bits),
                      (JUMP_IF_EQUAL, 0, 1, bits), (RETURN, 0, 0, EPERM),
                      (LOAD, 0, 0, NUMBER_AT)]
    for name in sorted(allowed_calls(values(unit, "SystemCallFilter"))):
        if name in numbers:
            steps += [(JUMP_IF_EQUAL, 0, 1, numbers[name]),
                      (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, KILL))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def confine(unit: pathlib.Path) -> None:
    """Filters the calls of this process and of what it executes."""
    program = program_of(unit)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((SET_NO_NEW_PRIVS, 1, 0), (SET_SECCOMP, MODE_FILTER,
                                                 header)):
        if libc.prctl(*arguments, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    confine(pathlib.Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
