"""How many threads a call uses that nobody has set: by a system that is described in files, and by PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import layer, program
from tvmconvgrad.runtime import cpus, native, tensors, threads
from tvmconvgrad.runtime.cpus import usable_cpus

V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 25 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = (
    "25 1 8:1 / / rw - ext4 /dev/sda rw\n"
    "31 25 0:28 / /sys/fs/cgroup/cpuset rw shared:8 - cgroup cgroup rw,cpuset\n"
    "line that is none\n"
)


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


def system(root: Path, mounts: str, groups: str, quotas: dict[str, str]) -> Path:
    """A root folder with what the system tells of control groups."""
    about = root / "proc/self"
    about.mkdir(parents=True)
    (about / "mountinfo").write_text(OTHER + mounts)
    (about / "cgroup").write_text(groups)
    for name, text in quotas.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("max 100000\n", 64),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("1000 100000\n", 1),
        ("6400000 50000\n", 64),
        ("0 100000\n", 1),
        ("100000 0\n", 64),
        ("100000\n", 64),
        ("", 64),
        ("-1 100000\n", 64),
        ("²00000 100000\n", 64),
    ],
)
def test_a_quota_is_rounded_up(tmp_path: Path, quota: str, cpus: int) -> None:
    assert usable_cpus(system(tmp_path, V2.format(top="/"), "0::/\n", {"cpu.max": quota})) == cpus


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("outer", "middle", "inner", "cpus"),
    [(9, 5, 7, 5), (3, 5, 7, 3), (9, 8, 7, 7), (None, 6, None, 6), (None, None, None, 64)],
)
def test_the_least_of_nested_groups(
    tmp_path: Path, outer: int | None, middle: int | None, inner: int | None, cpus: int
) -> None:
    names = {"cpu.max": outer, "a.slice/cpu.max": middle, "a.slice/b c/cpu.max": inner, "a.slice/other/cpu.max": 1}
    quotas = {name: f"{number}00000 100000\n" for name, number in names.items() if number is not None}
    assert usable_cpus(system(tmp_path, V2.format(top="/"), "0::/a.slice/b c\n", quotas)) == cpus


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("top", "group", "name"),
    [
        ("/", "/", ""),
        ("/docker/1234", "/docker/1234", ""),  # a container without a namespace of its own
        ("/docker/1234", "/docker/1234/job", "job/"),
        ("/docker/a\\040b", "/docker/a b/job", "job/"),
        ("/", "/../other", ""),
        ("/elsewhere", "/docker/1234", ""),
        ("/", "/pods/one", "pods/one/"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_where_a_group_lies(tmp_path: Path, version: int, top: str, group: str, name: str) -> None:
    if version == 2:
        root = system(tmp_path, V2.format(top=top), f"0::{group}\n", {f"{name}cpu.max": "300000 100000\n"})
    else:
        quotas = {"quota": "250000\n", "period": "100000\n"}
        files = {f"cpu,cpuacct/{name}cpu.cfs_{word}_us": text for word, text in quotas.items()}
        groups = f"4:memory:/m\n2:cpu,cpuacct:{group}\n3:cpuset:/c\n1:name=systemd:/s\n0::/\n"
        root = system(tmp_path, V1.format(top=top), groups, files)
    assert usable_cpus(root) == 3


@pytest.mark.usefixtures("many_cpus")
def test_no_quota_of_version_1(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert usable_cpus(system(tmp_path, V1.format(top="/"), "2:cpu,cpuacct:/\n", files)) == 64


@pytest.mark.usefixtures("many_cpus")
def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 64
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_bytes(b"\xff\n- - cgroup2 x y\n1 2 3 / / - cgroup2 x y\n - \n")
    (tmp_path / "proc/self/cgroup").write_bytes(b"\xff\n0:\n::::\n\n")
    assert usable_cpus(tmp_path) == 64


def test_the_affinity_is_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 6, 9})
    assert usable_cpus(system(tmp_path, V2.format(top="/"), "0::/\n", {"cpu.max": "800000 100000"})) == 3


def test_quotas_are_read_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([[5], [6], [7]])
    monkeypatch.setattr(cpus, "_quotas", lambda root: next(found))
    cpus._quotas_lately.cache_clear()
    try:
        assert [cpus._quotas_lately(second) for second in (1, 1, 2, 2)] == [(5,), (5,), (6,), (6,)]
    finally:
        cpus._quotas_lately.cache_clear()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7", 7),
        ("4,2", 4),
        (" 5 , 3", 5),
        ("5000", 4096),
        *((text, None) for text in ("", "0", "-2", "two", ",3", "1e3", "²", "9" * 5000)),
    ],
)
def test_openmps_variable(text: str, count: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_requested", None)
    monkeypatch.setattr(threads, "_bound", None)
    monkeypatch.setattr(threads, "usable_cpus", lambda: 64)
    monkeypatch.delenv("TVMCONVGRAD_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    threads.forget()
    assert cg.get_num_threads() == (count or 64)
    monkeypatch.setenv("TVMCONVGRAD_NUM_THREADS", "3")
    assert cg.get_num_threads() == 3
    cg.set_num_threads(2)
    assert cg.get_num_threads() == 2


def test_pytorchs_number_is_a_bound_once_its_tensors_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tensors.meet_torch(torch)
    told: list[int] = []
    tell = native.set_threads
    monkeypatch.setattr(native, "set_threads", lambda count: (told.append(count), tell(count)))
    monkeypatch.setattr(threads, "_requested", None)
    monkeypatch.setattr(threads, "_told", None)
    monkeypatch.setattr(threads, "_default", lambda: 3)
    threads.forget()
    kernel, inputs, want = layer()
    given = [torch.from_numpy(array) for array in inputs]
    before = torch.get_num_threads()
    try:
        for count in (2, 1, 1, 5, 2):
            torch.set_num_threads(count)
            assert np.array_equal(kernel(*given).numpy(), want)
            assert cg.get_num_threads() == min(count, 3)
        assert told == [2, 1, 3, 2]
        cg.set_num_threads(4)
        kernel(*given)
        assert (told[-1], cg.get_num_threads()) == (4, 4)
    finally:
        torch.set_num_threads(before)


def test_nobody_imports_pytorch() -> None:
    assert program("assert right()\nprint('torch' in sys.modules)") == "False"


def test_a_child_with_fewer_cpus() -> None:
    code = """
import tvmconvgrad.runtime.cpus as cpus
from tvmconvgrad.runtime import threads
cpus._quotas = lambda _: []
os.sched_getaffinity = lambda _: set(range(4))
assert right() and cg.get_num_threads() == 4
os.sched_getaffinity = lambda _: {0, 1}
assert right() and cg.get_num_threads() == 4
child = os.fork()
if child == 0:
    os._exit(10 * right() + cg.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {"TVMCONVGRAD_NUM_THREADS": "", "OMP_NUM_THREADS": ""}
    assert program(code, **environment) == "12"


@pytest.mark.parametrize("room", [40, 200, 700])
def test_where_memory_does_not_suffice_for_the_threads(room: int) -> None:
    code = f"""
import resource
assert right()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + ({room} << 20),) * 2)
cg.set_num_threads(4096)
print(all(right() for _ in range(3)), len(os.listdir("/proc/self/task")) < 4096)
"""
    assert program(code) == "True True"
