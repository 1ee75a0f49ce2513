"""Processes below a process, and those of an embedded farm, by /proc."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["children", "descendants", "gone", "of_household"]


def children(pid: int) -> set[int]:
    """The processes that a process has started and that are there, zombies left out."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(stat.parent.name))
    return found


def descendants(pid: int) -> set[int]:
    """Children, and theirs."""
    found: set[int] = set()
    work = [pid]
    while work:
        for child in children(work.pop()):
            if child not in found:
                found.add(child)
                work.append(child)
    return found


def of_household(home: Path) -> dict[int, str]:
    """The processes of the embedded farms whose home is a folder, with their commands."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        ours = "hotblock_farm." in command or "unixsocket" in command
        if ours and (f"{home}/" in command or f'"{home}"' in command):
            found.add(int(path.parent.name))
    for pid in list(found):
        found |= descendants(pid)
    commands = {}
    for pid in found:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if command:  # a zombie has none
            commands[pid] = command
    return commands


def gone(home: Path, patience: float) -> bool:
    """Whether the embedded farms of a folder are gone within so many seconds."""
    deadline = time.monotonic() + patience
    while of_household(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
