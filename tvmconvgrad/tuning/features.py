"""MetaSchedule's cost model, XGBoost on features of each store of a program. Importing this imports TVM."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature, PyFeatureExtractor

from tvmconvgrad.tuning.space import choice_of

WARM_UP = 16
"""Measured candidates that the model learns from before it is believed."""

_KEPT = 1024


@derived_object
class KnownFeatures(PyFeatureExtractor):  # type: ignore[misc]
    """MetaSchedule's per-store features; those of a program that was seen before are not extracted again."""

    def __init__(self) -> None:
        super().__init__()
        self._extractor = PerStoreFeature()
        self._known: OrderedDict[str, Any] = OrderedDict()

    def extract_from(self, context: Any, candidates: Sequence[Any]) -> list[Any]:
        """A tensor for each candidate: stores x features."""
        keys = [str(choice_of(candidate.sch)) for candidate in candidates]
        new = {key: candidate for key, candidate in zip(keys, candidates) if key not in self._known}
        if new:
            found = self._extractor.extract_from(context, list(new.values()))
            self._known.update(zip(new, found))
        features = [self._known[key] for key in keys]
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return features


def make_model(threads: int) -> Any:
    """A cost model of its own for a task."""
    return XGBModel(extractor=KnownFeatures(), num_warmup_samples=WARM_UP, num_tuning_cores=threads, verbose_eval=0)
