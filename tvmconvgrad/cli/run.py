"""tvmconvgrad run"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import rich_click as click

import tvmconvgrad
from tvmconvgrad.cli.common.errors import UserError, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import (
    NEW_FILE,
    Ints,
    compile_options,
    dtype_option,
    make_operator,
    operator_options,
    shapes_option,
)
from tvmconvgrad.cli.common.output import output_file
from tvmconvgrad.common.terminal import in_bytes, in_seconds, print_facts
from tvmconvgrad.files.regular_file import open_regular
from tvmconvgrad.machines.targets import TF32
from tvmconvgrad.reference import Verdict, judge
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.runtime.cuda.memory import GpuArray
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec.dtypes import DTYPES
from tvmconvgrad.spec.values import counted, parse_ints

Array = npt.NDArray[Any]
_MAGIC = b"\x93NUMPY"


@click.command(cls=Command)
@operator_options
@click.argument("files", nargs=-1, metavar="[FIRST.npy SECOND.npy]", type=click.Path(exists=True, dir_okay=False))
@shapes_option(required=False)
@dtype_option
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the random inputs.")
@compile_options
@click.option("--untuned", is_flag=True, help="Use the default schedule and ignore tuning logs.")
@click.option("--threads", type=int, help="Threads of a call.  [default: all CPUs]")
@click.option("--repeat", default=10, show_default=True, type=click.IntRange(1), help="Number of timed calls.")
@click.option("--check", is_flag=True, help="Compare the result with the definition; exit code 1 if it is wrong.")
@click.option("--out", metavar="FILE.npy", type=NEW_FILE, help="Write the result to this file.")
def run(
    operator: str,
    files: tuple[str, ...],
    shapes: tuple[Ints, Ints] | None,
    dtype: str | None,
    seed: int,
    target: str,
    schedule: str | None,
    untuned: bool,
    threads: int | None,
    repeat: int,
    check: bool,
    out: Path | None,
    **attributes: Any,
) -> int:
    """Compute a gradient from two .npy files, or from random tensors of given shapes, and measure the time.

    OPERATOR is Convolution or ConvTranspose, followed by BackpropFilters or BackwardWeights (the weights
    gradient, whose inputs are the forward's input and the gradient of its output), or by BackpropData or BackwardData
    (the data gradient, whose inputs are the gradient of the output and the filter). Files hold f32, f16, or bf16 as
    NumPy writes arrays of ml_dtypes.

    \b
    tvmconvgrad run ConvolutionBackpropFilters --shapes 8,56,56,64 8,56,56,128 \\
        --auto-pad same_upper --filter-shape 3,3,64,128 --check
    tvmconvgrad run ConvolutionBackwardData diff_dst.npy weights.npy --auto-pad valid --strides 2,2 --out diff_src.npy
    """
    first, second = _inputs(files, shapes, dtype, seed)
    op = make_operator(operator, attributes, first.ndim - 2)
    with user_errors():
        if threads is not None:
            tvmconvgrad.set_num_threads(threads)
        if first.dtype != second.dtype:
            raise ValueError(f"{op.input_names[1]}: is {second.dtype}, but {op.input_names[0]} is {first.dtype}")
        kernel = op.compile(
            first.shape, second.shape, dtype=first.dtype, target=target, schedule=schedule, tuned=not untuned
        )
        result, seconds = _measured(kernel, first, second, repeat)
    if out is not None:
        _save(out, result)
    facts = _facts(kernel, result, seconds, repeat)
    by_tiles = kernel.schedule.startswith("winograd")
    may_round = kernel.target.multiplied(kernel.problem.dtype) == TF32
    verdict = judge(kernel.problem, first, second, result, by_tiles, may_round) if check else None
    if verdict is not None:
        facts["check"] = _in_words(verdict, result.size)
    print_facts(facts)
    return 0 if verdict is None or verdict.is_right else 1


def _inputs(
    files: tuple[str, ...], shapes: tuple[Ints, Ints] | None, dtype: str | None, seed: int
) -> tuple[Array, Array]:
    if bool(files) == (shapes is not None):
        raise UserError("two .npy files or --shapes are needed, one of these")
    if shapes is None:
        if dtype is not None:
            raise UserError("--dtype goes with --shapes: files have a type of their own")
        if len(files) != 2:
            raise UserError(f"expected two .npy files, the operator's inputs, got {len(files)}")
        return _load(files[0]), _load(files[1])
    rng = np.random.default_rng(seed)
    with user_errors():
        known = [parse_ints("--shapes", shape, low=0) for shape in shapes]
    with user_errors("--shapes: "):
        # integers, whose sums are exact as long as they are small: --check then takes nothing but equality
        one, two = (rng.integers(-4, 5, shape, np.int8).astype(NUMPY_DTYPES[dtype or "f32"]) for shape in known)
    return one, two


def _load(file: str) -> Array:
    try:
        with open(open_regular(Path(file)), "rb") as content:
            if content.read(len(_MAGIC)) != _MAGIC:
                raise UserError(f"{file}: is no .npy file, as numpy.save writes them")
            content.seek(0)
            array: Array = np.load(content, allow_pickle=False)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # NumPy reads the header by Python's own means, whose errors are many
        what = "holds Python objects" if "allow_pickle" in str(error) else f"is damaged: {error}"
        raise UserError(f"{file}: {what}, expected an array of f32, f16 or bf16") from error
    # NumPy's file format has no name for bf16, and keeps two bytes of no type
    array = array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array
    if array.dtype not in [NUMPY_DTYPES[name] for name in DTYPES]:
        raise UserError(f"{file}: {array.dtype} is not supported, expected f32, f16 or bf16")
    return array


def _save(path: Path, result: Array) -> None:
    with output_file(path) as file:
        # what is no file of the system NumPy writes by `write`, which tells why it fails; tofile does not
        np.save(SimpleNamespace(write=file.write), result)


def _measured(kernel: Kernel, first: Array, second: Array, repeat: int) -> tuple[Array, float]:
    """The result, and the median time of a call after the first; on a GPU with the launch and the wait for the end."""
    if kernel.target.backend.is_gpu:
        result, seconds = _timed(kernel, GpuArray.of(first), GpuArray.of(second), repeat)
        return result.numpy(), seconds
    return _timed(kernel, first, second, repeat)


def _timed(kernel: Kernel, first: Any, second: Any, repeat: int) -> tuple[Any, float]:
    result = kernel(first, second)
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        kernel(first, second, result)
        times.append(time.perf_counter() - begin)
    return result, statistics.median(times)


def _facts(kernel: Kernel, result: Array, seconds: float, repeat: int) -> dict[str, object]:
    place = "on the GPU" if kernel.target.backend.is_gpu else f"threads: {tvmconvgrad.get_num_threads()}"
    return {
        "problem": kernel.problem,
        "target": kernel.target,
        "schedule": kernel.schedule,
        "decisions": kernel.origin,
        "workspace": in_bytes(kernel.workspace_bytes),
        "result": f"{kernel.problem.output_name} {result.shape} {kernel.problem.dtype}",
        "time": f"{in_seconds(seconds)} (median of {repeat}, {place})",
        "speed": f"{kernel.problem.flops / seconds / 1e9:.3g} GFLOP/s",
    }


def _in_words(verdict: Verdict, size: int) -> str:
    judged = "right" if verdict.is_right else f"WRONG in {verdict.wrong} of {counted(size, 'element')}"
    if verdict.exact:
        return f"{judged}: equal to the definition" if verdict.is_right else f"{judged}, by up to {verdict.error:.3g}"
    return f"{judged}: off by up to {verdict.error:.2g}, where rounding allows {verdict.allowed:.2g}"
