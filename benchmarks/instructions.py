"""How many instructions AArch64's kernels take for a product, from their assembly. No such CPU is needed.

    python benchmarks/instructions.py [--suite resnet_50] [LAYER ..]

Of each kernel the innermost loop with the most products is counted, its own branches included. An FMLA of four f32 has
4 products and a BFDOT 8, so nothing takes less than 1/4 and 1/8. With --mca, llvm-mca of LLVM 19 says how many products
that loop computes in a cycle of a Neoverse N2 and V2, of at most 8 and 16, and with BFDOT 16 and 32.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator

from tvmconvgrad.compiler import llvm
from tvmconvgrad.layers import LayerGradient
from tvmconvgrad.layers.selection import select_gradients
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec.reducing import reduced

LAYERS = ("res3a_branch2b", "res3a_branch2c")  # 3x3 and 1x1
CASES = {
    "f32": ("neoverse-n1", "f32"),
    "f16": ("neoverse-n1", "f16"),
    "bf16 without BF16": ("neoverse-n1", "bf16"),
    "bf16 by BFDOT": ("neoverse-n2", "bf16"),
}
MODELS = ("neoverse-n2", "neoverse-v2")
ITERATIONS = 300
_PRODUCTS = {r"\tfmla\tv\d+\.4s": 4, r"\tbfdot\tv\d+\.4s": 8}
_INSTRUCTION, _LABEL = re.compile(r"\t[a-z]"), re.compile(r"(\.\w+):")
_BRANCH = re.compile(r"\t(?:b|b\.\w+|cbn?z|tbn?z)\t.*?(\.\w+)$")


def main() -> None:
    """Print a table's line for each layer and gradient."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", default="resnet_50")
    parser.add_argument("--mca", metavar="PROGRAM", help="llvm-mca-19, for example")
    parser.add_argument("layers", nargs="*")
    given = parser.parse_args()
    layers = given.layers or LAYERS
    print("| layer | gradient |", " | ".join(CASES), "|\n| --- | --- |", "--- | " * len(CASES))
    selected = {dtype: select_gradients([given.suite], dtypes=[dtype]) for _, dtype in CASES.values()}
    for number, (_, gradient) in enumerate(selected["f32"]):
        if gradient.layer.name in layers:
            loops = [hottest(selected[dtype][number][1], mcpu) for mcpu, dtype in CASES.values()]
            cells = [f"{len(loop) / products(loop):.2f}{modelled(loop, given.mca)}" for loop in loops]
            print(f"| {gradient.layer.name} | {gradient.kind} |", " | ".join(cells), "|", flush=True)


def hottest(gradient: LayerGradient, mcpu: str) -> list[str]:
    """The instructions of the innermost loop with the most products, of a gradient's kernel for a CPU."""
    target = parse_target(f"llvm -mcpu={mcpu} -mtriple=aarch64-linux-gnu")
    return max(innermost_loops(llvm.build(reduced(gradient.problem), target).assembly()), key=products)


def innermost_loops(assembly: str) -> Iterator[list[str]]:
    """The instructions of each loop that has no other loop inside: from a label to a branch back to it."""
    lines = assembly.splitlines()
    labels = {found[1]: number for number, line in enumerate(lines) if (found := _LABEL.match(line))}
    last = -1
    for number, line in enumerate(lines):
        branch = _BRANCH.match(line)
        begin = labels.get(branch[1], number) if branch else number
        if begin < number:
            if begin > last:
                yield [each for each in lines[begin : number + 1] if _INSTRUCTION.match(each)]
            last = number


def products(loop: list[str]) -> int:
    """How many multiply-adds an iteration computes."""
    return sum(count for line in loop for pattern, count in _PRODUCTS.items() if re.match(pattern, line))


def modelled(loop: list[str], mca: str | None) -> str:
    """The products in a cycle of each of `MODELS`, in brackets; nothing without a program that knows."""
    if mca is None:
        return ""
    text = "\n".join(line for line in loop if not _BRANCH.match(line))
    rates = []
    for mcpu in MODELS:
        command = [mca, "-mtriple=aarch64", f"-mcpu={mcpu}", f"-iterations={ITERATIONS}"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        cycles = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
        assert cycles is not None
        rates.append(f"{ITERATIONS * products(loop) / int(cycles[1]):.1f}")
    return f" ({', '.join(rates)})"


if __name__ == "__main__":
    main()
