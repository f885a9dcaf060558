"""Whole training steps of networks, with PyTorch's kernels and with these, in turn.

    python benchmarks/frameworks/training.py resnet_18 unet --threads 1 --layout contiguous
    python benchmarks/frameworks/training.py resnet_50 --device cuda --batch 64 --layout channels_last --dtype bf16

On a GPU cuDNN searches for its fastest algorithms before anything is timed (torch.backends.cudnn.benchmark).
With --peer compile, PyTorch's own steps run by torch.compile, and ours go on to run without it.
Each network runs in processes of its own: one that trains with both in turn, whose medians and gains are shown, and two
that train with one alone, with an empty cache, for the first step and the peak of memory. The first one compares losses
and gradients with those in float64, too. The convolutions' own gain is that of the fastest counted calls of each layer,
by what was chosen.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from networks import NETWORKS
from torch import nn

import tvmconvgrad.torch as cgt

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
MOST_ERROR = 4.0
"""Our error by PyTorch's, of a whole network, whose norms and activations make more of differences in rounding."""
BATCHES = 5
"""Where the error is more, it is that of other batches: rounding may move one activation over zero, which makes up to
0.008 of the relative error of ResNet-18 and DCGAN, with PyTorch's kernels as with ours."""
DTYPES = {"f32": "as it is", "tf32": "on a GPU PyTorch may round f32 to TF32", "bf16": "by autocast"}
PARTS = {"forward": "forward", "data gradient": "backward", "weights gradient": "backward"}


class Training:
    """A network, its optimiser and one batch."""

    def __init__(self, name: str, batch: int | None, layout: str, dtype: str, device: str) -> None:
        torch.manual_seed(0)
        network = NETWORKS[name]
        self.device = device
        self.model: nn.Module = network.make().to(device)
        self.x = torch.randn(batch or network.batch, *network.shape, device=device)
        if layout == "channels_last" and self.x.ndim in FORMATS:
            self.model = self.model.to(memory_format=FORMATS[self.x.ndim])  # type: ignore[call-overload]
            self.x = self.x.to(memory_format=FORMATS[self.x.ndim])
        self.optimiser = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.cast = torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16")
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.model

    def compiled(self) -> Training:
        """The same network, optimiser and batch, whose forward pass is compiled by Inductor."""
        other = copy.copy(self)
        other.forward = torch.compile(self.model)
        return other

    def loss(self) -> torch.Tensor:
        """Of a forward pass."""
        with self.cast:
            out = self.forward(self.x)
            return (out.float() if out.dtype is torch.bfloat16 else out).square().mean()  # type: ignore[no-any-return]

    def in_float64(self) -> Training:
        """A copy with the same weights and batch, without autocast."""
        other = copy.copy(self)
        other.model, other.x = copy.deepcopy(self.model).double(), self.x.double()
        other.forward, other.cast = other.model, torch.autocast(self.device, enabled=False)
        return other

    def with_other_batch(self, seed: int) -> Training:
        """The same network, and a batch of the same shape."""
        other = copy.copy(self)
        torch.manual_seed(seed)
        other.x = torch.randn_like(self.x)
        return other

    def derivatives(self) -> torch.Tensor:
        """The loss and its gradients with respect to all parameters, as one vector in float64."""
        loss = self.loss()
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        return torch.cat([loss.detach().reshape(1), *(grad.flatten() for grad in grads)]).double()

    def step(self) -> tuple[float, float, float, float]:
        """One step: seconds of the forward pass, the backward pass and all, and the loss."""
        begin = self.mark()
        self.optimiser.zero_grad()
        loss = self.loss()
        forward = self.mark()
        loss.backward()  # type: ignore[no-untyped-call]
        backward = self.mark()
        self.optimiser.step()
        end = self.mark()
        value = loss.item()  # waits for a GPU
        return seconds(begin, forward), seconds(forward, backward), seconds(begin, end), value

    def mark(self) -> Any:
        """The time in seconds, or an event on the GPU's stream, which lets the program go on."""
        if self.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def peak_mib(self) -> float:
        """The most memory that this process has used: of a GPU that PyTorch has allocated there, or of the machine."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds(begin: Any, end: Any) -> float:
    """The time between two marks."""
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3)


def prepared(options: argparse.Namespace) -> Training:
    """What to train, and PyTorch's switches for a GPU."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    return Training(options.child, options.batch, options.layout, options.dtype, options.device)


def in_turn(options: argparse.Namespace) -> dict[str, Any]:
    """Medians of both, and the gains."""
    training = prepared(options)
    begin = time.perf_counter()
    cgt.enable(options.algorithm, devices=[options.device])
    with training.cast:
        report = cgt.warmup(training.model, training.x, progress=False)
    warmup = time.perf_counter() - begin
    error = check(training, options.algorithm)
    steps: dict[str, list[tuple[float, float, float, float]]] = {"ours": [], "theirs": []}
    trainings = {"ours": training, "theirs": training.compiled() if options.peer == "compile" else training}
    for _ in range(options.rounds):
        for who, turns in steps.items():
            cgt.enable(options.algorithm, devices=[options.device]) if who == "ours" else cgt.disable()
            trainings[who].step()
            turns.extend(trainings[who].step() for _ in range(2))
    medians = {who: [median(turn[i] for turn in turns) for i in range(3)] for who, turns in steps.items()}
    gains = [theirs / ours for ours, theirs in zip(medians["ours"], medians["theirs"])]
    sums: dict[str, list[float]] = {"forward": [0.0, 0.0], "backward": [0.0, 0.0]}
    for row in report.rows:
        if row.theirs_ms and row.ours_ms:
            both = sums[PARTS[row.part]]
            both[0] += row.ours_ms if row.by == "tvmconvgrad" else row.theirs_ms
            both[1] += row.theirs_ms
    ours = sum(row.by == "tvmconvgrad" for row in report.rows)
    return {
        "ms": {who: [round(seconds * 1e3, 2) for seconds in found] for who, found in medians.items()},
        "gain": dict(zip(("forward", "backward", "step"), (round(gain, 3) for gain in gains))),
        "convolutions": {name: round(theirs / ours, 3) for name, (ours, theirs) in sums.items() if ours},
        "ours": f"{ours} of {len(report.rows)}",
        "error": round(error, 2),
        "warmup_s": round(warmup, 1),
    }


def check(training: Training, algorithm: str) -> float:
    """Our error divided by PyTorch's: of the loss and all gradients of a step, beside float64, in the Euclidean norm.

    Ends the program where it is more than MOST_ERROR for each of BATCHES batches.
    """
    for seed in range(BATCHES):
        ratio = error_by_theirs(training.with_other_batch(seed), algorithm)
        if ratio <= MOST_ERROR:
            return ratio
    raise SystemExit(f"our error beside float64 is {ratio:.2g} times PyTorch's, for each of {BATCHES} batches")


def error_by_theirs(training: Training, algorithm: str) -> float:
    """The same for one batch."""
    cgt.disable()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):  # a search takes long in float64
        right = training.in_float64().derivatives()
    errors = {}
    for who in ("ours", "theirs"):
        cgt.enable(algorithm) if who == "ours" else cgt.disable()
        errors[who] = float((training.derivatives() - right).norm() / right.norm())
    return errors["ours"] / max(errors["theirs"], 1e-12)


def alone(options: argparse.Namespace) -> dict[str, Any]:
    """The first step, the peak of memory, and losses, of one of both."""
    training = prepared(options)
    if options.who == "ours":
        cgt.enable(options.algorithm, devices=[options.device])
    first = training.step()[2]
    losses = [training.step()[3] for _ in range(options.steps)]
    return {"first_s": round(first, 3), "peak_mib": round(training.peak_mib()), "losses": losses}


def ask(options: argparse.Namespace, name: str, who: str) -> dict[str, Any]:
    """What a process of its own finds."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-benchmark-") as folder:
        folders = {"TVMCONVGRAD_TUNING_DIR": folder}
        if who != "both":  # in turn, the cache's kernels will do
            folders["TVMCONVGRAD_CACHE_DIR"] = folder
        environment = os.environ | folders | {"OMP_NUM_THREADS": str(options.threads)}
        words = [*sys.argv[1:], "--child", name, "--who", who]
        done = subprocess.run(
            [sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """All of one network, printed as a line."""
    found = ask(options, name, "both")
    if options.steps:
        ours, theirs = (ask(options, name, who) for who in ("ours", "theirs"))
        found["first_step"] = round(ours["first_s"] / theirs["first_s"], 3)
        found["peak_memory"] = round(ours["peak_mib"] / theirs["peak_mib"], 3)
        pairs = zip(ours["losses"], theirs["losses"])
        found["losses"] = max((abs(a - b) / max(abs(b), 1e-12) for a, b in pairs), default=0.0)
    gain, own = found["gain"], found["convolutions"]
    print(
        f"{name:14} step {found['ms']['theirs'][2]:8.1f} -> {found['ms']['ours'][2]:8.1f} ms, gain {gain['step']:.2f}"
        f" (forward {gain['forward']:.2f}, backward {gain['backward']:.2f}); convolutions forward"
        f" {own.get('forward', 1):.2f}, backward {own.get('backward', 1):.2f}; ours {found['ours']};"
        f" error by PyTorch's {found['error']:.2f}",
        *(f"{key} {found[key]:.3g}" for key in ("first_step", "peak_memory", "losses") if key in found),
        flush=True,
    )
    return found


def main() -> None:
    """Measure the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layout", choices=("contiguous", "channels_last"), default="contiguous")
    parser.add_argument("--algorithm", choices=("direct", "auto"), default="direct")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="; ".join(map(": ".join, DTYPES.items())))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer", choices=("eager", "compile"), default="eager", help="how PyTorch computes")
    parser.add_argument("--batch", type=int, help="instead of each network's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="of each alone, for first step, peak memory and losses")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--who", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(in_turn(options) if options.who == "both" else alone(options)))
        return
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"networks: {unknown[0]!r} is unknown, expected {', '.join(NETWORKS)}")
    found = {name: measure(options, name) for name in options.networks or NETWORKS}
    for title in ("forward", "backward", "step"):
        logs = [math.log(one["gain"][title]) for one in found.values()]
        print(f"geometric mean of the gain, {title}: {math.exp(sum(logs) / len(logs)):.3f}")
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options) | {"json": None}, "networks": found}, indent=1))


if __name__ == "__main__":
    main()
