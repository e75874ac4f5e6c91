"""Quotas of cgroups count as cores, unless somebody asked for a number of threads."""

import math

import pytest
import torch

from specdec_kernels.backends import _cores

V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}


def machine(folder, groups, files):
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    "groups, files, wanted",
    {
        "no cgroup": ("", {}, math.inf),
        "v2, no limit": ("0::/", {"cpu.max": "max 100000"}, math.inf),
        "v2": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        "v2, deep": ("0::/a/b", {"cpu.max": "max 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        "v2, a limit around": ("0::/a/b", {"a/cpu.max": "100000 50000", "a/b/cpu.max": "400000 100000"}, 2),
        "v2, seen from a container": ("0::/../x", {"cpu.max": "300000 100000"}, 3),
        "v1": ("4:cpu,cpuacct:/a", {f"cpu,cpuacct/a/{k}": v for k, v in V1.items()}, 1.5),
        "v1, the host's path": ("4:cpu:/docker/7", {f"cpu/{k}": v for k, v in V1.items()}, 1.5),
        "v1, no limit": ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        "v1, of another kind": ("5:memory:/a\n4:cpu:/", {f"memory/a/{k}": v for k, v in V1.items()}, math.inf),
        "both": ("4:cpu:/\n0::/", {"cpu.max": "250000 100000", **{f"cpu/{k}": v for k, v in V1.items()}}, 1.5),
    }.values(),
)
def test_quota(tmp_path, groups, files, wanted):
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert _cores.quota(machine(tmp_path, groups, files)) == wanted


@pytest.fixture
def environment(monkeypatch):
    for name in _cores.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    return monkeypatch


@pytest.mark.parametrize("quota, wanted", [(math.inf, 8), (12.0, 8), (2.0, 2), (1.5, 2), (0.1, 1)])
def test_threads(environment, quota, wanted):
    environment.setattr(_cores, "quota", lambda: quota)
    assert _cores.threads() == wanted
    for name in _cores.VARIABLES:
        with environment.context() as asked:
            asked.setenv(name, "8")
            assert _cores.threads() == 8
