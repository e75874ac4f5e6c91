"""The default number of threads of a process: a container's quota of time is often less than its cores."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # each decides if it is set


def is_set() -> bool:
    """Whether the environment sets the number of threads."""
    return any(os.environ.get(name) for name in VARIABLES)


def threads() -> int:
    """torch's number of threads; without a variable, no more than the cores whose time the process may use."""
    most = torch.get_num_threads()
    return most if is_set() else max(1, math.ceil(min(most, quota())))


def quota(root: Path = Path("/")) -> float:
    """The cores' time that the cgroups of this process allow; infinite without a limit."""
    return min(limits(root), default=math.inf)


def limits(root: Path) -> Iterator[float]:
    """The limit of each cgroup that this process is in, and of those around it. Version 2 and version 1."""
    try:
        groups = (root / "proc/self/cgroup").read_text().split("\n")
    except (OSError, UnicodeDecodeError):  # not Linux
        return
    for _, controllers, path in (line.split(":", 2) for line in groups if line.count(":") > 1):
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("", "cpu", controllers):
            group = root / "sys/fs/cgroup" / mount
            for folder in ("", *(part for part in Path(path).parts if part not in ("/", ".."))):
                group /= folder
                yield from limit(group)


def limit(group: Path) -> Iterator[float]:
    """The cores that one cgroup allows, if it has a limit."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            quota, period = map(int, " ".join((group / name).read_text() for name in files).split())
        except (OSError, ValueError):  # not there, or "max"
            continue
        if quota > 0 and period > 0:
            yield quota / period
