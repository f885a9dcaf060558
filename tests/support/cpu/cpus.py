"""CPUs that kernels are built for by name: what each has, by its manual, and small problems to build for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tests.support.cases.case import Case, assert_close_by_tiles, assert_same
from tests.support.cases.convolution import Array, Convolution

if TYPE_CHECKING:
    from tvmconvgrad.machines.targets import Target
    from tvmconvgrad.spec import Problem


@dataclass(frozen=True)
class Cpu:
    """`lanes` is the f32 elements of a vector register."""

    name: str
    architecture: str
    lanes: int
    registers: int
    multiplies: str
    """A regular expression for an instruction that multiplies full vectors."""
    lacks: str | None = None
    """One for what the CPU does not have, or is not to use."""
    emulated: tuple[str, ...] = ()
    """qemu's CPUs that run its code, of AArch64."""

    def __str__(self) -> str:
        return self.name

    @cached_property
    def target(self) -> Target:
        from tvmconvgrad.machines.targets import parse_target

        return parse_target(f"llvm -mcpu={self.name}")


_AVX2 = ("x86_64", 8, 16, r"vfmadd\d+ps\s.*%ymm", r"%zmm")
_AVX512 = ("x86_64", 16, 32, r"vfmadd\d+ps\s.*%zmm")
_NEON = ("aarch64", 4, 32, r"(?:fmla|bfdot)\s+v\d+\.4s")
_SVE = r"\bz\d+\.s"
_SVE_LENGTHS = tuple(f"max,sve{bits}=on" for bits in (128, 256, 512))
CPUS = (
    Cpu("x86-64-v2", "x86_64", 4, 16, r"mulps\s.*%xmm", r"^\tv[a-z]|%[yz]mm"),
    Cpu("x86-64-v3", *_AVX2),
    Cpu("znver3", *_AVX2),
    Cpu("x86-64-v4", *_AVX512),
    Cpu("skylake-avx512", *_AVX512),
    Cpu("neoverse-v1", *_NEON, emulated=_SVE_LENGTHS),  # with SVE and BF16
    Cpu("cortex-a76", *_NEON, _SVE, ("cortex-a76",)),
    Cpu("neoverse-n1", *_NEON, _SVE, ("neoverse-n1",)),
)

_FILTERS, _DATA, _FORWARD = "ConvolutionBackpropFilters", "ConvolutionBackpropData", "ConvTransposeBackpropData"
_ONE, _NO = (1, 1), (0, 0)
_DENSE = Convolution(2, 1, 32, 64, (10, 11), (10, 11), (3, 3), _ONE, _ONE, _ONE, _ONE)
_UNEVEN = Convolution(1, 1, 17, 35, (9, 11), (9, 11), (3, 3), _ONE, _ONE, _ONE, _ONE)
_POINTWISE = Convolution(2, 1, 32, 48, (7, 7), (7, 7), _ONE, _ONE, _ONE, _NO, _NO)
_DEPTHWISE = Convolution(1, 32, 32, 32, (9, 9), (9, 9), (3, 3), _ONE, _ONE, _ONE, _ONE)
_LINE = Convolution(1, 32, 32, 32, (400,), (400,), (3,), (1,), (1,), (1,), (1,))
_STRIDED = Convolution(1, 1, 32, 64, (12, 12), (6, 6), (3, 3), (2, 2), _ONE, _NO, _ONE)
_FEW = Convolution(1, 1, 3, 32, (17, 17), (17, 17), (3, 3), _ONE, _ONE, _ONE, _ONE)
_CUT = Convolution(1, 1, 17, 5, (1,), (5,), (3,), (1,), (6,), (8,), (8,))
CASES = {
    "dense filters": Case(_FILTERS, _DENSE),
    "dense data": Case(_DATA, _DENSE),
    "dense forward": Case(_FORWARD, _DENSE),
    "1x1 filters": Case(_FILTERS, _POINTWISE),
    "1x1 data": Case(_DATA, _POINTWISE),
    "depthwise filters": Case(_FILTERS, _DEPTHWISE),
    "depthwise data": Case(_DATA, _DEPTHWISE),
    "depthwise filters by channels": Case(_FILTERS, _LINE, "NCX", "OIX"),
    "depthwise data by channels": Case(_DATA, _DEPTHWISE, "NCX", "OIX"),
    "strided data": Case(_DATA, _STRIDED),
    "few channels' filters": Case(_FILTERS, _FEW),
    "few channels' data": Case(_DATA, _FEW),
    "vectors cut by the result's end": Case(_DATA, _CUT, "NCX", "IOX", "bf16"),
    "uneven filters in bf16": Case(_FILTERS, _UNEVEN, dtype="bf16"),
    "uneven data in f16": Case(_DATA, _UNEVEN, dtype="f16"),
}


@dataclass(frozen=True)
class Build:
    """A case by its name, for a CPU. A parameter that were a Case would have its kernels built ahead, for this CPU."""

    cpu: Cpu
    name: str

    def __str__(self) -> str:
        return f"{self.cpu} {self.name}"

    @property
    def case(self) -> Case:
        return CASES[self.name]

    @cached_property
    def problem(self) -> Problem:
        """What the kernel is built from."""
        import tvmconvgrad
        from tvmconvgrad.spec.reducing.merging import merged

        call = self.case.call
        operator = getattr(tvmconvgrad, call.operator)(**call.attributes)
        return merged(operator.problem(*call.shapes, call.shape_input, call.dtype))

    @property
    def target(self) -> Target:
        """The CPU with all of the rules for it."""
        return replace(self.cpu.target, algorithm="auto")

    @property
    def rules(self) -> list[str]:
        """Names of the rules that take the problem, the chosen one first."""
        from tvmconvgrad import schedules

        return schedules.applicable(self.problem, self.target)


def builds(cpus: Sequence[Cpu]) -> list[Build]:
    """All cases for each of these CPUs."""
    return [Build(cpu, name) for cpu in cpus for name in CASES]


def assert_right(rule: str, got: Array, exact: Array) -> None:
    """The exact sums, rounded once; or close to them, if a rule of Winograd's algorithm computed them."""
    if rule.startswith("winograd"):
        assert_close_by_tiles(got, exact)
    else:
        assert_same(got, exact.astype(got.dtype))
