"""Networks on sound: one spatial axis."""

from __future__ import annotations

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.layers.suites.building import Suite, square

_SAMPLES = 16000
_RESIDUAL, _SKIP = 64, 256


def _wavenet(batch: int) -> list[Layer]:
    """One second at 16 kHz. The padding that keeps the network causal is in the input: it is `dilation` longer."""

    def pair(name: str, channels: int, filters: int, dilation: int) -> Layer:
        return square(name, batch, channels, filters, _SAMPLES + dilation, 2, dilation=dilation, rank=1)

    def pointwise(name: str, channels: int, filters: int) -> Layer:
        return square(name, batch, channels, filters, _SAMPLES, 1, rank=1)

    # the filter's and the gate's convolution are computed as one
    return [
        pair("causal", 256, _RESIDUAL, 1),
        *(pair(f"dilated{d}", _RESIDUAL, 2 * _RESIDUAL, d) for d in (1, 4, 16, 64, 256, 512)),
        pointwise("residual", _RESIDUAL, _RESIDUAL),
        pointwise("skip", _RESIDUAL, _SKIP),
        pointwise("end", _SKIP, _SKIP),
    ]


WAVENET = Suite("wavenet", "van den Oord et al.: WaveNet, A Generative Model for Raw Audio, 2016", 2, _wavenet)
