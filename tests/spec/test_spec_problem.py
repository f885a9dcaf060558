"""Problem and Geometry: what an operator's shapes resolve to, as values and as text."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tvmconvgrad import spec
from tvmconvgrad.spec import (
    ConvolutionBackpropData,
    ConvolutionBackpropFilters,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvTransposeBackpropData,
    ConvTransposeBackpropFilters,
    ConvTransposeBackwardData,
    ConvTransposeBackwardWeights,
    Geometry,
    Gradient,
    Problem,
    parse_dtype,
)

ATTRIBUTES = {"strides": (2, 1), "pads_begin": (1, 0), "pads_end": (0, 2), "dilations": (1, 2), "groups": 3}
GEOMETRY = Geometry(
    batch=2,
    groups=3,
    c=6,
    o=9,
    x=(9, 10),
    y=(5, 8),
    k=(2, 3),
    strides=(2, 1),
    dilations=(1, 2),
    pads_begin=(1, 0),
    pads_end=(0, 2),
)
BIG = {"NXC": (2, 9, 10, 6), "NCX": (2, 6, 9, 10)}
SMALL = {"NXC": (2, 5, 8, 9), "NCX": (2, 9, 5, 8)}
# the order of Geometry's letters, and the shape: c//groups is 2, o is 9
CONVOLUTION = {"XIO": ("XCO", (2, 3, 2, 9)), "OIX": ("OCX", (9, 2, 2, 3)), "OXI": ("OXC", (9, 2, 3, 2))}
TRANSPOSED = {
    "XIO": ("XOC", (2, 3, 9, 2)),
    "OIX": ("COX", (2, 9, 2, 3)),
    "IOX": ("OCX", (9, 2, 2, 3)),
    "XOI": ("XCO", (2, 3, 2, 9)),
    "IXO": ("OXC", (9, 2, 3, 2)),
}
OPERATORS = {
    ConvolutionBackpropFilters: ("filter", ("input_forward", "output_delta"), "filter_delta"),
    ConvolutionBackwardWeights: ("filter", ("src", "diff_dst"), "diff_weights"),
    ConvolutionBackpropData: ("data", ("output_delta", "filter"), "input_delta"),
    ConvolutionBackwardData: ("data", ("diff_dst", "weights"), "diff_src"),
    ConvTransposeBackpropFilters: ("filter", ("input_forward", "output_delta"), "filter_delta"),
    ConvTransposeBackwardWeights: ("filter", ("src", "diff_dst"), "diff_weights"),
    ConvTransposeBackpropData: ("forward", ("output_delta", "filter"), "input_delta"),
    ConvTransposeBackwardData: ("forward", ("diff_dst", "weights"), "diff_src"),
}
NEW_TO_OLD = {"BackwardWeights": "BackpropFilters", "BackwardData": "BackpropData"}


def make(operator, data_format="NXC", filter_format="XIO", dtype="f32"):
    """The operator's problem on GEOMETRY, with its expected input shapes and output shape."""
    transposed, gradient = operator.__name__.startswith("ConvTranspose"), OPERATORS[operator][0]
    filter_shape = (TRANSPOSED if transposed else CONVOLUTION)[filter_format][1]
    big, small = BIG[data_format], SMALL[data_format]
    op = operator(**ATTRIBUTES, data_format=data_format, filter_format=filter_format)
    inputs, output = {
        "filter": ((small, big) if transposed else (big, small), filter_shape),
        "data": ((small, filter_shape), big),
        "forward": ((big, filter_shape), small),
    }[gradient]
    shape = None if gradient == "forward" else output
    return op.problem(*inputs, shape, dtype=dtype), inputs, output


ALL = [
    (operator, data_format, filter_format)
    for operator in OPERATORS
    for data_format in BIG
    for filter_format in (TRANSPOSED if operator.__name__.startswith("ConvTranspose") else CONVOLUTION)
]


@pytest.mark.parametrize(("operator", "data_format", "filter_format"), ALL)
def test_problem(operator, data_format, filter_format):
    problem, inputs, output = make(operator, data_format, filter_format)
    gradient, input_names, output_name = OPERATORS[operator]
    old = operator.__name__
    for new_suffix, old_suffix in NEW_TO_OLD.items():
        old = old.replace(new_suffix, old_suffix)
    assert (problem.operator, problem.gradient) == (old, Gradient(gradient))
    assert problem.geometry == GEOMETRY
    assert (problem.data_format, problem.filter_format, problem.dtype) == (data_format, filter_format, "f32")
    table = TRANSPOSED if problem.transposed else CONVOLUTION
    assert (problem.filter_axes, problem.filter_shape) == table[filter_format]
    assert (problem.x_shape, problem.y_shape) == (BIG[data_format], SMALL[data_format])
    assert (problem.input_shapes, problem.output_shape) == (inputs, output)
    assert (problem.input_names, problem.output_name) == (input_names, output_name)
    assert operator(**ATTRIBUTES).input_names == input_names


@pytest.mark.parametrize(("operator", "data_format", "filter_format"), ALL)
def test_round_trip(operator, data_format, filter_format):
    problem, *_ = make(operator, data_format, filter_format, "bf16")
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again == problem
    assert hash(again) == hash(problem)
    assert repr(again) == repr(problem)


def test_flops_and_extent():
    assert (GEOMETRY.rank, GEOMETRY.tap_extent) == (2, (2, 5))
    # 2 images of 5x8 positions, 9 channels of y, each with 2 channels and 6 taps of x
    assert make(ConvolutionBackpropData)[0].flops == GEOMETRY.flops == 2 * 2 * 40 * 9 * 2 * 6


def test_flops_are_those_of_a_known_layer():
    # the 3x3 layer of ResNet-50's first stage has 0.1156 billion multiply-adds an image
    op = ConvolutionBackpropFilters(strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1))
    problem = op.problem((1, 56, 56, 64), (1, 56, 56, 64), (3, 3, 64, 64))
    assert math.isclose(problem.flops, 2 * 115.6e6, rel_tol=1e-3)


def test_text_is_one_line():
    text = str(make(ConvTransposeBackwardWeights, "NCX", "IOX", "f16")[0])
    assert text == (
        "ConvTransposeBackpropFilters f16: src NCX 2x9x5x8, diff_dst NCX 2x6x9x10 -> "
        "diff_weights IOX 9x2x2x3; strides 2x1, pads 1x0/0x2, dilations 1x2, groups 3"
    )
    assert str(make(ConvolutionBackpropData)[0]).startswith(
        "ConvolutionBackpropData f32: output_delta NXC 2x5x8x9, filter XIO 2x3x2x9 -> input_delta NXC 2x9x10x6; "
    )


@pytest.mark.parametrize("operator", [op for op in OPERATORS if "Backprop" in op.__name__])
def test_key_is_the_same_under_both_names(operator):
    new = next(op for op in OPERATORS if op is not operator and issubclass(op, operator))
    (old_problem, *_), (new_problem, *_) = make(operator), make(new)
    assert old_problem != new_problem
    assert old_problem.key == new_problem.key
    assert "\n" not in old_problem.key
    assert old_problem.key != make(operator, dtype="f16")[0].key
    assert old_problem.key != make(operator, data_format="NCX")[0].key
    assert old_problem.key != make(operator, filter_format="OIX")[0].key


def test_keys_of_the_operators_differ():
    assert len({make(operator)[0].key for operator in OPERATORS}) == 4


BROKEN = [
    None,
    {},
    [],
    {"operator": "y"},
    {"gradient": "sideways"},
    {"geometry": {}},
    {"extra": 1},
    {"dtype": "f64"},
    {"flips_filter": "yes"},
    {"in_new_pages": 1},
]


@pytest.mark.parametrize("change", BROKEN)
def test_from_dict_refuses_what_is_broken(change):
    good = make(ConvolutionBackpropFilters)[0].to_dict()
    with pytest.raises(ValueError):
        Problem.from_dict(change if not change or "operator" in change else {**good, **change})


@pytest.mark.parametrize("name", ["flips_filter", "in_new_pages"])
def test_what_front_ends_say_of_a_problem_is_part_of_it(name):
    plain = make(ConvolutionBackpropFilters)[0]
    said = replace(plain, **{name: True})
    assert name not in plain.to_dict()
    assert said.key != plain.key
    assert Problem.from_dict(said.to_dict()) == said


def test_from_dict_refuses_what_is_missing():
    good = make(ConvolutionBackpropFilters)[0].to_dict()
    for name in good:
        with pytest.raises(ValueError, match="not a problem's description"):
            Problem.from_dict({k: v for k, v in good.items() if k != name})


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *[(name, "f32") for name in ("f32", "float32", "torch.float32")],
        *[(name, "f16") for name in ("f16", "float16")],
        *[(name, "bf16") for name in ("bf16", "bfloat16", "torch.bfloat16")],
    ],
)
def test_dtype_names(value, dtype):
    assert parse_dtype(value) == dtype
    assert make(ConvolutionBackwardData, dtype=value)[0].dtype == dtype


def test_dtypes_of_numpy():
    np = pytest.importorskip("numpy")
    assert [parse_dtype(t) for t in (np.float32, np.dtype("float32"), np.zeros(1, "f").dtype)] == ["f32"] * 3
    assert [parse_dtype(t) for t in (np.float16, np.dtype("float16"))] == ["f16"] * 2
    foreign = np.dtype("float32").newbyteorder()
    for bad in (np.float64, np.dtype("int32"), foreign, np.dtype(np.void)):
        with pytest.raises(ValueError, match="expected f32, f16 or bf16"):
            parse_dtype(bad)


def test_dtypes_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    np = pytest.importorskip("numpy")
    assert parse_dtype(ml_dtypes.bfloat16) == parse_dtype(np.dtype(ml_dtypes.bfloat16)) == "bf16"


def test_dtypes_of_torch():
    torch = pytest.importorskip("torch")
    assert [parse_dtype(t) for t in (torch.float32, torch.float16, torch.bfloat16)] == ["f32", "f16", "bf16"]
    for bad in (torch.float64, torch.int32, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match="expected f32, f16 or bf16"):
            parse_dtype(bad)


IMPORT_SPEC_ALONE = """
import sys, types
package = types.ModuleType("tvmconvgrad")  # in place of tvmconvgrad/__init__.py, which has imports of its own
package.__path__ = [sys.argv[1]]
sys.modules["tvmconvgrad"] = package
import tvmconvgrad.spec
print(sorted({"numpy", "torch", "tvm", "tvm_ffi", "ml_dtypes"} & set(sys.modules)))
print(sorted(name for name in sys.modules if name.startswith("tvmconvgrad.") and ".spec" not in name))
"""


def test_importing_spec_imports_no_framework():
    package = Path(spec.__file__).parents[1]
    command = [sys.executable, "-c", IMPORT_SPEC_ALONE, str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "['tvmconvgrad.computed_once']"]


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "Convolution"},
        {"operator": ["ConvolutionBackpropFilters"]},
        {"gradient": "data"},
        {"filter_axes": "XC"},
        {"filter_axes": "CXO"},
        {"filter_axes": 3},
        {"input_names": ["one"]},
        {"input_names": ["one", {}]},
        {"output_name": 5},
    ],
)
def test_from_dict_refuses_what_is_no_gradient(change):
    good = make(ConvolutionBackpropFilters)[0].to_dict()
    with pytest.raises(ValueError):
        Problem.from_dict({**good, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"strides": [0, 1]},
        {"dilations": [1]},
        {"k": [0, 1]},
        {"y": []},
        {"x": [1, 2, 3]},
        {"groups": 4},
        {"more": [1, 1]},
    ],
)
def test_from_dict_refuses_what_is_no_geometry(change):
    good = make(ConvolutionBackpropFilters)[0].to_dict()
    with pytest.raises(ValueError):
        Problem.from_dict({**good, "geometry": {**good["geometry"], **change}})
