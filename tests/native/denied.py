"""A program: denied.py ERRNO CALL,... COMMAND... runs a command in which Linux refuses these system calls.

They fail as under a container's rules (seccomp) that don't know them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

# The numbers of x86-64 and of aarch64.
NUMBERS = {
    "faccessat2": (439, 439),
    "fallocate": (285, 47),
    "flock": (73, 32),
    "fstatfs": (138, 44),
    "membarrier": (324, 283),
    "personality": (135, 92),
    "pidfd_open": (434, 434),
    "prctl": (157, 167),
    "preadv2": (327, 286),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "sysinfo": (99, 179),
}
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def deny(error: int, calls: list[str]) -> None:
    """Have these system calls fail in this process and those that it starts."""
    column = ("x86_64", "aarch64").index(platform.machine())
    steps = [_Instruction(_LOAD, 0, 0, 0)]
    for call in calls:
        steps.append(_Instruction(_JUMP_IF_EQUAL, 0, 1, NUMBERS[call][column]))
        steps.append(_Instruction(_RETURN, 0, 0, _FAIL | error))
    steps.append(_Instruction(_RETURN, 0, 0, _ALLOW))
    program = _Program(len(steps), (_Instruction * len(steps))(*steps))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or prctl(_SECCOMP, _FILTER, ctypes.byref(program)):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    deny(int(sys.argv[1]), sys.argv[2].split(","))
    os.execvp(sys.argv[3], sys.argv[3:])
