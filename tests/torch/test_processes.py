"""Programs of several processes: DistributedDataParallel, and workers of a DataLoader that are forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DDP = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import tvmconvgrad.torch as cgt

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3, 2))

def data():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))

def work(rank, file):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    cgt.enable()
    model = torch.nn.parallel.DistributedDataParallel(net())
    model(data()[2 * rank : 2 * rank + 2]).square().mean().backward()
    assert all(not row.why for row in cgt.report().rows), cgt.report()
    assert len(cgt.report().rows) == 5
    cgt.disable()
    whole = net()
    whole(data()).square().mean().backward()
    for ours, theirs in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
    dist.destroy_process_group()
    print("right", flush=True)
    os._exit(0)  # else the destructor of PyTorch's ProcessGroupGloo may wait for ever: see below

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""
LOADER = """
import torch
import tvmconvgrad.torch as cgt

torch.use_deterministic_algorithms(True)
filter_ = torch.ones(1, 1, 3, 3)

class Smoothed(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, place):
        image = torch.full((1, 1, 6, 6), float(place))
        return torch.conv2d(image, filter_)[0]

cgt.enable()
model = torch.nn.Conv2d(1, 2, 3)
loader = torch.utils.data.DataLoader(Smoothed(), batch_size=2, num_workers=2, multiprocessing_context="fork")
for _ in range(2):
    seen = []
    for batch in loader:
        model(batch).sum().backward()
        seen += batch[:, 0, 0, 0].tolist()
    assert seen == [9.0 * place for place in range(6)], seen
print("right")
"""


def run(program: str, tmp_path: object, *arguments: str) -> str:
    script = f"{tmp_path}/program.py"
    with open(script, "w", encoding="utf-8") as file:
        file.write(program)
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# PyTorch 2.13: backward notes a Python object for each piece of work (autograd/graph.py stashes the context). A thread
# of ProcessGroupGloo drops it with its mutex held, for which it waits for Python's lock. The destructor of the group,
# called with Python's lock held when the model goes, waits for that mutex.
@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path: object) -> None:
    assert run(DDP, tmp_path, f"{tmp_path}/meeting").count("right") == 2  # in one line, or in two


def test_workers_of_a_data_loader_by_fork(tmp_path: object) -> None:
    assert run(LOADER, tmp_path).split() == ["right"]
