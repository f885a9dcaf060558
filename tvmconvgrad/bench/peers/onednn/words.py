"""oneDNN 3's words for a job: numbers of operators and attributes, spellings of their values."""

from __future__ import annotations

from typing import Any

from tvmconvgrad.bench.job import Job

# dnnl_graph_op_kind_t and dnnl_graph_op_attr_t
KINDS = {
    "Convolution": 13,
    "ConvolutionBackwardData": 14,
    "ConvolutionBackwardWeights": 15,
    "ConvTranspose": 16,
    "ConvTransposeBackwardData": 17,
    "ConvTransposeBackwardWeights": 18,
}
ATTRIBUTES = {
    "groups": 50,
    "dilations": 65,
    "dst_shape": 66,
    "output_padding": 69,
    "pads_begin": 70,
    "pads_end": 71,
    "strides": 75,
    "weights_shape": 76,
    "auto_pad": 129,
    "data_format": 131,
    "weights_format": 135,
}
# ConvTranspose's filters have other names in oneDNN 3, whose channel axes are in the other order; it has none in which
# space is between the channels, and for Convolution none in which inputs follow outputs or come first
_FILTERS = {"OXI": "OIX", "XOI": "XIO", "IOX": "OIX"}
_TRANSPOSED_FILTERS = {"XIO": "XOI", "OIX": "IOX", "IXO": "IOX"}


def graph_lacks(job: Job) -> bool:
    """Whether oneDNN 3.13's Graph API refuses a valid gradient of this kind, or ends the process by it."""
    if job.old_name == "ConvolutionBackpropData":
        return bool(job.attributes.get("groups", 1) > 1)
    return job.old_name == "ConvTransposeBackpropData" and max(job.attributes["dilations"]) > 1


def in_its_formats(job: Job) -> Job:
    """The same gradient with the filter in a layout that the Graph API has."""
    names = _TRANSPOSED_FILTERS if job.transposed else _FILTERS
    return job.in_formats(job.data_format, names.get(job.filter_format, job.filter_format), job.dtype)


def operator_name(job: Job) -> str:
    """The operator's new name."""
    return job.old_name.replace("BackpropFilters", "BackwardWeights").replace("BackpropData", "BackwardData")


def attributes(job: Job) -> dict[str, Any]:
    """The attributes of the Graph API's operator."""
    found = {**job.attributes, "data_format": job.data_format, "weights_format": job.filter_format}
    if "auto_pad" in found:
        mode = found["auto_pad"].upper()
        found["auto_pad"] = "None" if mode == "NONE" else mode
    if job.is_forward:
        return found
    found.pop("output_padding", None)  # not in a gradient's schema; the shapes imply it
    if job.result == "w":
        found["weights_shape"] = job.shape("w")
    elif job.result == "x":
        found["dst_shape"] = job.shape("x")
    return found
