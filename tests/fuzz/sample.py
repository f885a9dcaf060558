"""What one try of the fuzzer is: a case, how its kernel is made, and how it is called. Plain data, as JSON too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from tests.support.cases.case import Call, Case
from tests.support.cases.convolution import Convolution

PLAIN = "plain"
EVERYWHERE = "inf everywhere"
HUGE = 2**31
"""From here on an attribute may be refused for its size."""


@dataclass(frozen=True)
class Sample:
    """One problem, its kernel and its call. Its text is the Python that makes it."""

    case: Case
    target: str = "llvm -mcpu=native"
    rule: str | None = None
    given: dict[str, int] = field(default_factory=dict)
    """Numbers of the rule that are not the default's."""
    memory: tuple[str, str, str] = (PLAIN, PLAIN, "new")
    """Where the inputs and the result lie: a word of placing.PLACES; "new" is no `out`."""
    accumulate: bool = False
    bias: str = ""
    """Where the bias gradient lies: a word of placing.PLACES; "" if it is not asked for."""
    added: str = ""
    """Where a bias lies that is added: a word of placing.PLACES; "" if none is."""
    result_dtype: str = ""
    """The result's type, if it is not the inputs'."""
    threads: int = 1
    value: str = ""
    """"inf" or "nan": one element of an input is that; or EVERYWHERE: all elements of both are infinite."""
    seed: int = 0

    @property
    def is_huge(self) -> bool:
        conv = self.case.convolution
        return max(*conv.strides, *conv.dilations, *conv.pads_begin, *conv.pads_end) >= HUGE

    @property
    def call(self) -> Call:
        """What it takes to build the kernel, but for the rule."""
        options = {"accumulate": self.accumulate, "bias_delta": bool(self.bias), "bias": bool(self.added)}
        dtype = {"result_dtype": self.result_dtype} if self.result_dtype else {}
        return replace(self.case.call, target=self.target, options={**options, **dtype})

    @property
    def out(self) -> str:
        """Where the result lies; who adds to it needs one that is there."""
        return PLAIN if self.accumulate and self.memory[2] == "new" else self.memory[2]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Sample:
        data = json.loads(line)
        case = {**data["case"], "convolution": Convolution(**_tuples(data["case"]["convolution"]))}
        return cls(**{**_tuples(data), "case": Case(**_tuples(case))})

    def __str__(self) -> str:
        return f"Sample({_case(self.case)}{''.join(f', {text}' for text in _changed(self))})"


def as_test(sample: Sample, verdict: str) -> str:
    """A test that fails as the sample did."""
    return (
        "def test_what_the_fuzzer_found() -> None:\n"
        f"    # {verdict.splitlines()[0]}\n"
        f"    sample = {sample}\n"
        '    assert judge(sample) == ""\n'
    )


def with_convolution(case: Case, convolution: Convolution) -> Case:
    """The same case of another convolution."""
    padding = None if case.output_padding is None else convolution.beyond
    return replace(case, convolution=convolution, output_padding=padding)


def _case(case: Case) -> str:
    conv = case.convolution
    numbers = ", ".join(f"{name.name}={getattr(conv, name.name)!r}" for name in fields(conv))
    return f"Case({case.operator!r}, Convolution({numbers}){''.join(f', {text}' for text in _changed(case))})"


def _changed(value: Any) -> list[str]:
    """The fields of a dataclass, but for the first ones, that are not the default's."""
    named = [field for field in fields(value) if field.name not in ("case", "operator", "convolution")]
    plain = type(value)(*(getattr(value, field.name) for field in fields(value) if field not in named))
    found = [field.name for field in named if getattr(value, field.name) != getattr(plain, field.name)]
    return [f"{name}={getattr(value, name)!r}" for name in found]


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
