"""tvmconvgrad inspect"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import rich_click as click

from tvmconvgrad.cli.common.errors import UserError, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import (
    Ints,
    compile_options,
    dtype_option,
    make_operator,
    operator_options,
    shapes_option,
)
from tvmconvgrad.common.terminal import console, in_bytes, print_facts
from tvmconvgrad.compiler.uninterrupted import uninterrupted
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.records import lookup
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.spec.values import counted

if TYPE_CHECKING:
    from tvmconvgrad.compiler.inspection import Inspection


@click.command(cls=Command)
@operator_options
@shapes_option(required=True)
@dtype_option
@compile_options
@click.option("--te", is_flag=True, help="Print the mathematics, as a tensor expression.")
@click.option("--tir", is_flag=True, help="Print the scheduled program.")
@click.option("--cuda", is_flag=True, help="Print a GPU's program in CUDA's C++.")
@click.option("--asm", is_flag=True, help="Print the assembly, or a GPU's PTX.")
def inspect(
    operator: str,
    shapes: tuple[Ints, Ints],
    dtype: str | None,
    target: str,
    schedule: str | None,
    te: bool,
    tir: bool,
    cuda: bool,
    asm: bool,
    **attributes: Any,
) -> None:
    """Show how a kernel computes, without running it, also for targets that this machine cannot run.

    OPERATOR is named as for `run`. Without --te, --tir, --cuda and --asm it prints a summary, with the padding that is
    used.

    \b
    tvmconvgrad inspect ConvolutionBackpropData --shapes 1,28,28,64 3,3,32,64 \\
        --strides 2,2 --auto-pad same_upper --output-shape 1,56,56,32
    tvmconvgrad inspect ConvTransposeBackpropData --shapes 1,28,28,64 3,3,32,64 \\
        --auto-pad valid --target "llvm -mcpu=sapphirerapids" --asm
    tvmconvgrad inspect ConvolutionBackpropFilters --shapes 8,56,56,64 8,56,56,64 \\
        --auto-pad same_upper --filter-shape 3,3,64,64 --dtype f16 --target "cuda -arch=sm_90" --cuda
    """
    op = make_operator(operator, attributes, len(shapes[0]) - 2)
    with user_errors():
        problem = op.problem(*shapes, dtype=dtype or "f32")
        resolved = parse_target(target)
        if 0 in (*problem.input_shapes[0], *problem.input_shapes[1], *problem.output_shape):
            raise UserError(f"{problem}: a sum without terms, or a result without elements, has no kernel")
        tuned = lookup.find(reduced(problem), resolved) if schedule is None else lookup.Tuned(None, lookup.DEFAULT)
        found = uninterrupted(partial(_inspected, problem, resolved, schedule, tuned.choice))
        if cuda and found.source is None:
            raise UserError(f"--cuda: a kernel for {resolved} is not made by way of CUDA's C++")
        wanted = {"te": te, "tir": tir, "source": cuda, "assembly": asm}
        sections = [str(getattr(found, name)) for name, asked in wanted.items() if asked]
        facts = {} if sections else _summary(found, tuned.origin)
    if sections:
        click.echo("\n\n".join(text.strip("\n") for text in sections))
        return
    console().print(repr(op), style="bold", markup=False)
    print_facts(facts)


def _inspected(problem: Problem, target: Target, schedule: str | None, choice: Choice | None) -> Inspection:
    from tvmconvgrad.compiler.inspection import inspect as inspect_problem  # imports TVM

    return inspect_problem(problem, target, schedule, choice)


def _summary(found: Inspection, origin: str) -> dict[str, object]:
    geometry = found.problem.geometry
    shapes = (*found.problem.input_shapes, found.problem.output_shape)
    names = (*found.problem.input_names, found.problem.output_name)
    return {
        **dict(zip(names, shapes, strict=True)),
        "pads_begin": geometry.pads_begin,
        "pads_end": geometry.pads_end,
        "operations": f"{found.problem.flops / 1e9:.3g} GFLOP",
        "target": found.target,
        "schedule": found.schedule,
        "decisions": origin,
        "workspace": in_bytes(found.workspace_bytes),
        **({"assembly": counted(len(found.assembly.splitlines()), "line")} if found.source is None else {}),
    }
