"""MetaSchedule's cost model, XGBoost on features of each store of a program. Importing this imports TVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.runtime import tensor
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.feature_extractor import PyFeatureExtractor

WARM_UP = 16
"""Measured candidates that the model learns from before it is believed."""

Features = Callable[[Schedule], NDArray[np.float32]]


@derived_object
class KnownFeatures(PyFeatureExtractor):  # type: ignore[misc]
    """The features that candidates were described by, where they were scheduled."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self._features = features

    def extract_from(self, context: Any, candidates: Sequence[Any]) -> list[Any]:
        """A tensor for each candidate: stores x features."""
        return [tensor(self._features(each.sch)) for each in candidates]


def make_model(features: Features, threads: int) -> Any:
    """A cost model of its own for a task."""
    return XGBModel(
        extractor=KnownFeatures(features), num_warmup_samples=WARM_UP, num_tuning_cores=threads, verbose_eval=0
    )
