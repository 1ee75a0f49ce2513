"""Processes below a process, by /proc."""

from __future__ import annotations

from pathlib import Path

__all__ = ["children", "descendants"]


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
