"""Calls of the public surface, most of them wrong: constructors, operators, compile, kernels, threads, bundles."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import tvmconvgrad as cg
from tests.fuzz_surface.judging import Count, Found, judged
from tests.fuzz_surface.pool import Known, numbers, overlapping, placed
from tests.fuzz_surface.strange import strange, words
from tests.support.cases.case import NEW_ATTRIBUTES
from tvmconvgrad import spec
from tvmconvgrad.machines.targets import parse_target

OPERATORS = [getattr(cg, name) for name in cg.__all__ if name.startswith("Conv")]
ATTRIBUTES = sorted({name for op in OPERATORS for name in inspect.signature(op).parameters if name != "unknown"})
OLD_ATTRIBUTES = {new: old for old, new in NEW_ATTRIBUTES.items()}


class Calls:
    """Draws and judges calls on known problems. `bundle` is a bundle's folder; `torch` whether PyTorch is there."""

    def __init__(self, random: Random, pool: list[Known], bundle: Path, torch: bool) -> None:
        self._random, self._pool, self._bundle, self._torch = random, pool, bundle, torch
        self.count = Count()
        self._ways: dict[Callable[[Known], str], float] = {
            self._construct: 5, self._operate: 6, self._run: 5, self._compile: 4, self._problem: 3, self._parse: 4,
            self._threads: 1, self._load: 1, self._use: 0.3,
        }  # fmt: skip

    def one(self) -> None:
        """One call."""
        (way,) = self._random.choices(list(self._ways), list(self._ways.values()))
        self.count.add(way(self._random.choice(self._pool)))

    def _strange_names(self, names: list[str]) -> list[str]:
        return self._random.sample(names, min(len(names), self._random.choice((0, 1, 1, 1, 2))))

    def _construct(self, known: Known) -> str:
        random, kind = self._random, type(known.operator)
        given = dict(known.case.attributes)
        for name in self._random.sample(ATTRIBUTES, random.choice((0, 1, 1, 2))):
            given[name] = strange(random)
        if random.random() < 0.1 and given:
            del given[random.choice(sorted(given))]
        if random.random() < 0.05:
            given[random.choice(["stride", "", "Strides", "é", "\ud800", "x" * 3000])] = strange(random)
        names = (*given, *ATTRIBUTES)
        outcome, operator = judged(lambda: kind(**given), lambda: f"{kind.__name__}(**{words(given)})", names)
        if operator is not None:
            self._check_operator(operator)
        return f"constructor {outcome}"

    def _check_operator(self, operator: Any) -> None:
        others = [copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))]
        same = all(other == operator and hash(other) == hash(operator) for other in others)
        if not same or not isinstance(repr(operator), str):
            raise Found(f"{operator!r} does not equal its copy")
        for name in ("auto_pad", "data_format", "filter_format"):
            if type(getattr(operator, name)) is not str:
                raise Found(f"{operator!r}: {name} is no plain str")
        shape = operator.strides + (operator.pads_begin or ()) + (operator.groups,)
        if any(type(size) is not int for size in shape):
            raise Found(f"{operator!r} holds other things than ints")

    def _tensors(self, known: Known) -> tuple[list[Any], Any, bool]:
        """Two inputs and a result in whatever memory, and whether they are right."""
        random, torch = self._random, self._torch and self._random.random() < 0.15
        inputs, out, right = list(known.inputs), None, True
        way = random.random()
        if way < 0.15 and not torch:
            inputs, out = overlapping(random, inputs, known.result.shape)
            return inputs, out, True
        inputs = [placed(random, array, torch) for array in inputs]
        if way < 0.5:
            out = placed(random, np.full_like(known.result, 7), torch)
        if not torch:
            for array in inputs:
                array.flags.writeable = random.random() < 0.8
            if out is not None and random.random() < 0.1:
                out.flags.writeable = right = False
        return inputs, out, right

    def _operate(self, known: Known) -> str:
        inputs, out, right = self._tensors(known)
        given: dict[str, Any] = dict(zip(known.operator.input_names, inputs, strict=True))
        if known.shape_input is not None:
            shape: Any = known.shape_input
            given[known.names[-1]] = self._random.choice([shape, list(shape), np.array(shape, np.int32)])
        if out is not None or self._random.random() < 0.2:
            given["out"] = out
        if self._random.random() < 0.2:
            given["target"] = self._random.choice([None, "llvm -mcpu=native", {"kind": "llvm", "mcpu": "native"}])
        wrong = self._strange_names([*given, "target", "out"]) if right else []
        for name in wrong:
            given[name] = self._wrong(given.get(name))
        positional = [given.pop(name) for name in known.operator.input_names] if self._random.random() < 0.7 else []
        if self._random.random() < 0.02:
            given[self._random.choice(["src", "filter", "x", "é"])] = strange(self._random)
            right = False

        def about() -> str:
            return f"{known.operator!r}(*{words(positional)}, **{words(given)})"

        return "operator " + self._judge(
            known, lambda: known.operator(*positional, **given), about, out, right and not wrong
        )

    def _run(self, known: Known) -> str:
        inputs, out, right = self._tensors(known)
        given = [*inputs, out]
        wrong = self._random.random() < 0.5 and right
        if wrong:
            place = self._random.randrange(3)
            given[place] = self._wrong(given[place])

        def about() -> str:
            return f"{known.kernel}\n(*{words(given)})"

        return "kernel " + self._judge(known, lambda: known.kernel(*given), about, out, right and not wrong)

    def _judge(self, known: Known, call: Callable[[], Any], about: Callable[[], str], out: Any, right: bool) -> str:
        names = (*known.names, "src", type(known.operator).__name__)
        outcome, result = judged(call, about, names)
        if right and outcome != "right":
            raise Found(f"{about()}\nis right, and gave a {outcome}")
        if right and not np.array_equal(numbers(result), known.result.astype(np.float32)):
            raise Found(f"{about()}\ngave a wrong result")
        if right and out is not None and result is not out:
            raise Found(f"{about()}\ndid not return out")
        return outcome

    def _wrong(self, value: Any) -> Any:
        """Something else in place of a tensor."""
        if not isinstance(value, np.ndarray) or not value.ndim or self._random.random() < 0.6:
            return strange(self._random)
        array: Any = value
        changes: tuple[Callable[[], Any], ...] = (
            lambda: array[..., None], lambda: array[0] if array.shape[0] else array[None], lambda: array.T,
            lambda: np.concatenate([array, array[:1]]), lambda: array.astype(np.float64), lambda: array[:0],
            lambda: np.ascontiguousarray(array).view(np.uint8) if array.dtype.kind != "O" else None,
            lambda: array.reshape(-1)[0] if array.size else None, lambda: array.tolist(),
            lambda: np.ma.masked_array(array), lambda: array.view(array.dtype.newbyteorder()),
        )  # fmt: skip
        return self._random.choice(changes)()

    def _compile(self, known: Known) -> str:
        first, second = (array.shape for array in known.inputs)
        given: dict[str, Any] = {"first_shape": first, "second_shape": second, "dtype": known.case.dtype}
        given["shape_input"] = known.shape_input
        wrong = self._strange_names([*given, "target", "schedule", "tuned"])
        for name in wrong:
            given[name] = strange(self._random)
        if given.get("schedule", 1) is None and "tuned" in given:
            del given["tuned"]
        names = (*known.names, *given, "dtype", "schedule", "shape")

        def about() -> str:
            return f"{known.operator!r}.compile(**{words(given)})"

        outcome, kernel = judged(lambda: known.operator.compile(**given), about, names)
        if not wrong and (outcome != "right" or kernel.problem != known.kernel.problem):
            raise Found(f"{about()}\nis right, and gave a {outcome}")
        return f"compile {outcome}"

    def _problem(self, known: Known) -> str:
        """Shapes near the right ones: what is accepted has results of the shapes that were asked for."""
        random = self._random
        shapes = [list(array.shape) for array in known.inputs]
        for _ in range(random.choice((1, 1, 2))):
            shape = random.choice(shapes)
            shape[random.randrange(len(shape))] += random.choice((-1, 1, 2, -5, 2**40, 2**63))

        def about() -> str:
            return f"{known.operator!r}.problem(*{shapes}, {known.shape_input}, {known.case.dtype})"

        def call() -> spec.Problem:
            return known.operator.problem(*shapes, known.shape_input, known.case.dtype)

        outcome, problem = judged(call, about, (*known.names, *ATTRIBUTES))
        if problem is not None:
            again = spec.Problem.from_dict(problem.to_dict())
            if again != problem or list(map(list, problem.input_shapes)) != shapes or not str(problem):
                raise Found(f"{about()}\ngave {problem}")
        return f"problem {outcome}"

    def _parse(self, known: Known) -> str:
        target = self._target() if self._random.random() < 0.6 else strange(self._random)
        outcome, found = judged(lambda: parse_target(target), lambda: f"parse_target({words(target)})", ("target",))
        if found is not None and (parse_target(str(found)) != found or not isinstance(hash(found), int)):
            raise Found(f"parse_target({words(target)}) is {found!r}, which its text is not")
        return f"target {outcome}"

    def _target(self) -> Any:
        random = self._random
        options = {
            "mcpu": ["native", "znver3", "i386", "cortex-a76", "x86-64-v3", "-", "a b", "a\n", "é", "x" * 999],
            "mattr": ["+fma", "-fma", "+fma,-avx2", ",", "fma", "++", "+64bit", "+é", "+a" * 999],
            "mtriple": ["x86_64-linux-gnu", "x86_64", "aarch64-linux-gnu", "x86_64-pc-linux-coff", "x86_64-x\0", "-"],
            "algorithm": ["direct", "auto", "Auto", ""], "arch": ["sm_90", "sm_9", "sm_90a", "sm_\uff190", "native"],
            "fpmath_mode": ["tf32", "strict", "x"], "kind": ["llvm"], "": ["x"], "device": ["arm_cpu"],
        }  # fmt: skip
        names = random.sample(sorted(options), random.choice((0, 1, 1, 2, 3)))
        chosen = {name: random.choice(options[name]) for name in names}
        kind = random.choice(["llvm", "llvm", "llvm", "cuda", "c", ""])
        if random.random() < 0.3:
            return {"kind": kind, **chosen}
        return " ".join([kind, *(f"-{name}={value}" for name, value in chosen.items())])

    def _threads(self, known: Known) -> str:
        value = strange(self._random)
        outcome, _ = judged(
            lambda: cg.set_num_threads(value), lambda: f"set_num_threads({words(value)})", ("num_threads",)
        )
        if not 1 <= cg.get_num_threads() <= 4096:
            raise Found(f"set_num_threads({words(value)}) was taken")
        cg.set_num_threads(self._random.choice((1, 2)))
        return f"threads {outcome}"

    def _load(self, known: Known) -> str:
        value = strange(self._random)
        outcome, _ = judged(lambda: cg.load(value), lambda: f"load({words(value)})", ("folder",), (OSError,))
        return f"load {outcome}"

    def _use(self, known: Known) -> str:
        folder, build = strange(self._random), None
        if self._random.random() < 0.5:
            folder, build = self._bundle, strange(self._random)
            if build is None or isinstance(build, (bool, np.bool_)):
                build = "x"

        def about() -> str:
            return f"use({words(folder)}, build={words(build)})"

        outcome, found = judged(lambda: cg.use(folder, build=build), about, ("bundle", "build"), (OSError,))
        if found is not None:
            raise Found(f"{about()} was taken")
        return f"use {outcome}"
