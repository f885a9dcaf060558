"""The rounding errors of each convolution of the networks, beside PyTorch's own.

    python benchmarks/frameworks/torch_errors.py resnet_18 unet --algorithm auto

A layer's inputs are those of a forward pass with random weights and images; its output's gradient is random. Output,
data gradient and weights gradient are computed by our kernels, by PyTorch's, and in float64. An error is the Euclidean
norm of the difference from float64. Of each network the largest ratio of ours to PyTorch's is shown, with its layer.
"""

from __future__ import annotations

import argparse
import copy

import torch
from networks import NETWORKS
from torch import nn

import tvmconvgrad.torch as cgt

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PARTS = ("forward", "data gradient", "weights gradient")


def layers(name: str) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """A network's convolutions with an input each, one of those that are alike, by what they are."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    model = network.make()
    found: dict[str, tuple[nn.Module, torch.Tensor]] = {}

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        found.setdefault(f"{module}, {tuple(inputs[0].shape)}", (module, inputs[0].detach().clone()))

    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(torch.randn(network.batch, *network.shape))
    return found


def results(module: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Output, data gradient and weights gradient, in float64, as computed in `dtype`."""
    own = copy.deepcopy(module).to(dtype)
    own._forward_pre_hooks.clear()
    inputs = x.to(dtype).requires_grad_()
    out = own(inputs)
    torch.manual_seed(1)
    output_gradient = torch.randn(out.shape).to(dtype)
    weight = own.get_parameter("weight")
    grads = torch.autograd.grad(out, (inputs, weight), output_gradient)
    return [tensor.detach().double() for tensor in (out, *grads)]


def ratios(module: nn.Module, x: torch.Tensor, algorithm: str) -> list[float]:
    """Our error by PyTorch's, of each part. Ends the program where a part is left to PyTorch."""
    right, theirs = results(module, x, torch.float64), results(module, x, torch.float32)
    torch.use_deterministic_algorithms(True)  # so that our kernels compute all calls
    with cgt.enabled(algorithm):
        ours = results(module, x, torch.float32)
        left = [f"{row.part} of {row.layer}: {row.why}" for row in cgt.report().rows if row.by != "tvmconvgrad"]
    if left:
        raise SystemExit(f"PyTorch computes {left[0]}")
    torch.use_deterministic_algorithms(False)
    pairs = [(float((a - r).norm()), float((b - r).norm())) for a, b, r in zip(ours, theirs, right)]
    return [mine / max(other, 1e-30) if mine else 0.0 for mine, other in pairs]


def main() -> None:
    """Show the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--algorithm", choices=("direct", "auto"), default="direct")
    options = parser.parse_args()
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"networks: {unknown[0]!r} is unknown, expected {', '.join(NETWORKS)}")
    for name in options.networks or NETWORKS:
        found = [
            (ratio, part, layer)
            for layer, (module, x) in layers(name).items()
            for part, ratio in zip(PARTS, ratios(module, x, options.algorithm))
        ]
        largest, part, layer = max(found)
        mean = sum(ratio for ratio, *_ in found) / len(found)
        print(f"{name:14} {len(found):4} parts, mean {mean:.2f}, largest {largest:.2f}: {part} of {layer}", flush=True)


if __name__ == "__main__":
    main()
