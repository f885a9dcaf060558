"""A run of the fuzzer: samples by seed and number, the failures made small, each cause once."""

from __future__ import annotations

import itertools
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.fuzz.pool import Judged, Pool, Task
from tests.fuzz.shrinking import kind, shrunk


@dataclass
class Outcome:
    """How many samples were judged in how many seconds, and how many failed, by what their causes have in common.

    `cpu_seconds` is what the children took, their C compilers too: other programs may have had the rest of the time.
    """

    done: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        rate, each = self.done / max(self.seconds, 1e-9) * 60, self.cpu_seconds / max(self.done, 1)
        head = (
            f"{self.done} samples in {self.seconds / 60:.1f} minutes, {rate:.0f} a minute, {each:.2f} CPU seconds each"
        )
        lines = [f"{head}; {sum(self.failures.values())} wrong"]
        return "\n".join([*lines, *(f"{times:6} {name}" for name, times in self.failures.most_common())])


def tasks(seed: int, first: int = 0, count: int | None = None, seconds: float | None = None) -> Iterator[Task]:
    """Numbers of samples until there are enough or the time is over, of which the start of children is no part."""
    begin: float | None = None
    for index in itertools.count(first) if count is None else range(first, first + count):
        if begin is not None and seconds is not None and time.monotonic() > begin + seconds:
            return
        yield seed, index
        begin = begin or time.monotonic()  # here when a child is done with one


def run(wanted: Iterable[Task], jobs: int, found: Callable[[Judged], None], shrink: float = 90.0) -> Outcome:
    """Judge samples; `found` gets the first failure of each cause, as small as `shrink` seconds make it."""
    outcome, begin, before = Outcome(), time.monotonic(), _cpu_seconds()
    pool, single = Pool(jobs), Pool(1)
    try:
        for judged in pool.judge(wanted):
            outcome.done += 1
            if judged.verdict and _repeats(single, judged):
                cause = signature(judged)
                outcome.failures[cause] += 1
                if outcome.failures[cause] == 1:
                    found(shrunk(single, judged, shrink)._replace(task=judged.task))
    finally:
        pool.close()
        single.close()
        outcome.seconds, outcome.cpu_seconds = time.monotonic() - begin, _cpu_seconds() - before
    return outcome


def _cpu_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def signature(judged: Judged) -> str:
    """What failures of one cause have in common, as far as that can be seen."""
    if judged.sample is None:
        return kind(judged.verdict)
    sample = judged.sample
    text = judged.verdict.partition(": ")[2][:60] if "Error" in kind(judged.verdict) else ""
    words = (kind(judged.verdict), "|", sample.case.operator, sample.rule or "default", sample.value, text)
    return " ".join(filter(None, words))


def _repeats(pool: Pool, judged: Judged) -> bool:
    """Whether a failure is the sample's own. A busy machine makes others late, or has no memory left for them."""
    if not judged.verdict.startswith(("hang", "crash")):
        return True
    (again,) = pool.judge([judged.sample or judged.task])
    return bool(again.verdict)
