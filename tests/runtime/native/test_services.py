"""csrc/services.c, which every library carries: threads, memory and errors, called as a kernel calls them."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from tests.runtime.layers import FILTERS, WIDE_DATA, WIDE_FILTERS, layer, program
from tests.runtime.services import ALLOCATE, LAUNCH, RELEASE, TASK, Services, own_library, own_threads
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Array, Convolution

ONES = (1, 1)
HALVED = Convolution(1, 1, 20, 24, (9, 11), (5, 6), (3, 3), (2, 2), ONES, ONES, ONES)
STRIDED = Case("ConvolutionBackpropData", HALVED)
FORWARD = Case("ConvTransposeBackpropData", HALVED)
GROUPS = Convolution(2, 24, 24, 24, (9, 9), (9, 9), (3, 3), ONES, ONES, ONES, ONES)
DEPTHWISE = Case("ConvolutionBackpropFilters", GROUPS)

PACKS_BY_TASK = Case("ConvolutionBackpropFilters", Convolution(2, 1, 17, 25, (9, 8), (9, 8), (3, 3), *[ONES] * 4))


class Group(ctypes.Structure):
    """TVMParallelGroupEnv."""

    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


class Meter:
    """Services that run tasks one after the other, and count the bytes in use."""

    def __init__(self, tasks: int = 1) -> None:
        self.tasks, self.most = tasks, 0
        self.live: dict[int, Array] = {}
        self.services = Services(LAUNCH(self.launch), ALLOCATE(self.allocate), RELEASE(self.release))

    def launch(self, run: Any, data: int, _: int) -> int:
        group = Group(None, self.tasks)
        return max(abs(int(run(task, ctypes.addressof(group), data))) for task in range(self.tasks))

    def allocate(self, device: int, number: int, size: int, code: int, bits: int) -> int:
        assert (device, number) == (1, 0)
        assert (code, bits) in ((2, 32), (1, 16))  # f32, or the bits of bf16
        memory = np.empty(size + 64, np.uint8)
        address = memory.ctypes.data + -memory.ctypes.data % 64
        self.live[address] = memory
        self.most = max(self.most, sum(one.nbytes - 64 for one in self.live.values()))
        return int(address)

    def release(self, device: int, number: int, address: int) -> int:
        del self.live[address]
        return 0


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("case", [FILTERS, WIDE_FILTERS, WIDE_DATA, STRIDED, DEPTHWISE, FORWARD], ids=str)
def test_the_workspace_is_what_a_call_allocates(case: Case, dtype: str) -> None:
    case = case.with_dtype(dtype)
    _, inputs, want = layer(case)
    library, kernel = own_library(case)
    for tasks in (1, 3):
        meter = Meter(tasks)
        library.tvmconvgrad_use(ctypes.addressof(meter.services))
        assert_same(kernel(*inputs), want)
        assert meter.live == {}
        assert meter.most == kernel.workspace_bytes


def test_libraries_share_one_pool() -> None:
    for case in (STRIDED, DEPTHWISE, FORWARD):
        layer(case)
    code = """
from tests.runtime.native.test_services import DEPTHWISE, FORWARD, STRIDED
cg.set_num_threads(3)
assert right()
threads = len(os.listdir("/proc/self/task"))
for case in (STRIDED, DEPTHWISE, FORWARD):
    other, values, result = layer(case)
    assert np.array_equal(other(*values), result)
print(len(os.listdir("/proc/self/task")) - threads)
"""
    assert program(code) == "0"


def test_tvm_in_the_same_process_takes_nothing_over() -> None:
    code = """
cg.set_num_threads(3)
assert right()
import tvm
from tvmconvgrad.compiler.llvm import build
own = build(kernel.problem, kernel.target).executable.jit()["main"]
out = np.empty(want.shape, np.float32)
for _ in range(3):
    own(*inputs, out)
    assert np.array_equal(out, want) and right()
op = cg.ConvolutionBackpropData(strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,))
print(op(np.ones((1, 3, 2), np.float32), np.ones((1, 2, 2), np.float32)).tolist())
"""
    assert program(code) == str([[[2.0, 2.0]] * 3])


class TaskMeter(Meter):
    """Counts besides what is in use of a task's own."""

    def __init__(self) -> None:
        super().__init__(tasks=3)
        self.before, self.most_of_tasks = -1, 0

    def launch(self, run: Any, data: int, number: int) -> int:
        self.before = sum(one.nbytes - 64 for one in self.live.values())
        status = super().launch(run, data, number)
        self.before = -1
        return status

    def allocate(self, device: int, number: int, size: int, code: int, bits: int) -> int:
        address = super().allocate(device, number, size, code, bits)
        if self.before >= 0:
            in_use = sum(one.nbytes - 64 for one in self.live.values())
            self.most_of_tasks = max(self.most_of_tasks, in_use - self.before)
        return address


@pytest.mark.parametrize("case", [PACKS_BY_TASK, WIDE_FILTERS, WIDE_DATA, STRIDED, DEPTHWISE, FORWARD], ids=str)
def test_what_a_task_needs_for_itself(case: Case) -> None:
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.spec.reducing.merging import merged

    inputs = layer(case)[1]
    library, kernel = own_library(case)
    meter = TaskMeter()
    library.tvmconvgrad_use(ctypes.addressof(meter.services))
    kernel(*inputs)
    workspace = llvm.build(merged(kernel.problem), kernel.target).workspace
    assert sum(workspace.work_item_sizes) == meter.most_of_tasks
    assert sum(workspace.sizes) == meter.most


@pytest.mark.parametrize("late", range(3))
def test_each_thread_has_the_same_tasks_in_every_call_and_helps_the_others_from_behind(late: int) -> None:
    order: dict[int, list[int]] = {}
    begun = [threading.Event() for _ in range(12)]

    def run(task: int, group: Any, data: Any) -> int:
        order.setdefault(threading.get_ident(), []).append(task)
        begun[task].set()
        if task % 4 == 0:  # a share's first: until all threads have one, and the late one's until all else is done
            wait = range(12) if task == 4 * late else (0, 4, 8)
            assert all(begun[other].wait(60) for other in wait)
        return 0

    with own_threads(3) as launch:
        assert launch(TASK(run), None, 12) == 0
    found = sorted(order.values())
    assert [tasks[0] for tasks in found] == [0, 4, 8]
    assert sorted(task for tasks in found for task in tasks) == list(range(12))
    for share, tasks in enumerate(found):
        own = [task for task in tasks if task // 4 == share]
        assert own == list(range(4 * share, 4 * share + len(own)))
    assert found[late] == [4 * late]
