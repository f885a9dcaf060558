"""What a constructor accepts, what it makes of it, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections import deque
from enum import Enum, IntEnum

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
)

OPERATORS = [
    ConvolutionBackpropFilters,
    ConvolutionBackwardWeights,
    ConvolutionBackpropData,
    ConvolutionBackwardData,
    ConvTransposeBackpropFilters,
    ConvTransposeBackwardWeights,
    ConvTransposeBackpropData,
    ConvTransposeBackwardData,
]
CONV = [op for op in OPERATORS if op.__name__.startswith("Convolution")]
TRANSPOSED = [op for op in OPERATORS if op.__name__.startswith("ConvTranspose")]
FILTERS = [op for op in OPERATORS if op.__name__.endswith(("Filters", "Weights"))]

GOOD = {"strides": (2, 1), "pads_begin": (0, 1), "pads_end": (2, 3), "dilations": (1, 4)}


class Index:
    """An integer of some other library."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Two(IntEnum):
    TWO = 2


class Format(str, Enum):
    OIX = "OIX"


@pytest.mark.parametrize("operator", OPERATORS)
def test_defaults_are_the_specifications(operator):
    op = operator(**GOOD)
    assert (op.strides, op.pads_begin, op.pads_end, op.dilations) == ((2, 1), (0, 1), (2, 3), (1, 4))
    assert (op.auto_pad, op.groups, op.data_format, op.filter_format) == ("none", 1, "NXC", "XIO")
    assert op.weights_format == "XIO"


@pytest.mark.parametrize("strides", [[2, 1], (Index(2), 1), (Two.TWO, 1), range(2, 0, -1), deque([2, 1])])
def test_any_sequence_of_ints_will_do(strides):
    op = ConvolutionBackpropFilters(**{**GOOD, "strides": strides})
    assert op.strides == (2, 1)
    assert [type(s) for s in op.strides] == [int, int]


def test_numpy_ints_and_arrays_will_do():
    np = pytest.importorskip("numpy")
    op = ConvolutionBackpropFilters(
        strides=np.array([2, 1], np.int32),
        pads_begin=[np.int64(0), np.uint8(1)],
        pads_end=np.array([2, 3]),
        dilations=(1, 4),
        groups=np.int16(3),
        filter_shape=np.array([1, 1, 2, 3], np.int32),
    )
    assert op == ConvolutionBackpropFilters(**GOOD, groups=3, filter_shape=(1, 1, 2, 3))
    assert {type(v) for v in (*op.strides, *op.pads_begin, *op.filter_shape, op.groups)} == {int}


def test_torch_sizes_and_tensors_will_do():
    torch = pytest.importorskip("torch")
    op = ConvolutionBackpropFilters(**{**GOOD, "strides": torch.tensor([2, 1]), "dilations": torch.Size((1, 4))})
    assert op == ConvolutionBackpropFilters(**GOOD)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (None, "none"),
        ("None", "none"),
        ("NONE", "none"),
        ("same_upper", "same_upper"),
        ("SAME_UPPER", "same_upper"),
        ("Same_Lower", "same_lower"),
        ("VALID", "valid"),
    ],
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_auto_pad_in_any_letter_case(operator, given, stored):
    assert operator(**GOOD, auto_pad=given).auto_pad == stored


@pytest.mark.parametrize(
    "pads", [{}, {"pads_begin": []}, {"pads_begin": (7, 7), "pads_end": (7, 7)}, {"pads_end": "?"}]
)
@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower", "valid"])
def test_pads_are_ignored_with_auto_pad(auto_pad, pads):
    op = ConvolutionBackpropData(strides=[1, 1], dilations=[1, 1], auto_pad=auto_pad, **pads)
    assert op == ConvolutionBackpropData(strides=[1, 1], dilations=[1, 1], auto_pad=auto_pad)
    assert op.pads_begin is op.pads_end is None


@pytest.mark.parametrize("operator", CONV)
def test_filter_formats_of_convolution(operator):
    assert operator(**GOOD, filter_format=Format.OIX).filter_format == "OIX"
    assert type(operator(**GOOD, filter_format=Format.OIX).filter_format) is str


@pytest.mark.parametrize("layout", ["XIO", "OIX", "IOX", "XOI", "IXO"])
@pytest.mark.parametrize("operator", TRANSPOSED)
def test_filter_formats_of_conv_transpose(operator, layout):
    assert operator(**GOOD, weights_format=layout).filter_format == layout


@pytest.mark.parametrize("operator", OPERATORS)
def test_both_spellings_make_equal_operators(operator):
    shapes = {"filter_shape": "weights_shape", "output_shape": "dst_shape"}
    old, new = {"filter_format": "OIX"}, {"weights_format": "OIX"}
    if operator.shape_attribute:
        old[operator.shape_attribute] = new[shapes[operator.shape_attribute]] = (4, 4, 1, 1)
    a, b = operator(**GOOD, **old), operator(**GOOD, **new)
    assert a == b
    assert hash(a) == hash(b)
    for name, value in {**old, **new}.items():
        assert getattr(a, name) == getattr(b, name) == value


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_values(operator):
    op = operator(**GOOD, groups=2)
    assert op == operator(**GOOD, groups=2)
    assert op != operator(**GOOD, groups=1)
    assert len({op, operator(**GOOD, groups=2), operator(**GOOD)}) == 2
    assert pickle.loads(pickle.dumps(op)) == copy.deepcopy(op) == op
    assert dataclasses.replace(op, groups=1) == operator(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        op.groups = 3
    with pytest.raises(TypeError):
        operator((2, 1))


@pytest.mark.parametrize("operator", OPERATORS)
def test_repr_makes_the_operator_again(operator):
    op = operator(**GOOD, weights_format="OIX")
    assert eval(repr(op), {operator.__name__: operator}) == op
    assert "weights_format='OIX'" in repr(op)
    assert ("weights_format" in repr(operator(**GOOD))) == ("Backward" in operator.__name__)


@pytest.mark.parametrize("operator", OPERATORS)
def test_signature_names_the_attributes(operator):
    names = list(inspect.signature(operator).parameters)
    assert names[:5] == ["strides", "pads_begin", "pads_end", "dilations", "auto_pad"]
    has_output_padding = operator not in (ConvolutionBackpropFilters, ConvolutionBackwardWeights)
    assert ("output_padding" in names) == has_output_padding


@pytest.mark.parametrize("operator", [op for op in OPERATORS if "Backward" in op.__name__])
def test_new_names_add_nothing_but_names(operator):
    assert {name for name in vars(operator) if not name.startswith("__")} == {"backward_names"}


BIG = 10**5000  # repr() itself refuses it
BAD = [
    ({"strides": None}, TypeError, "strides is required"),
    ({"dilations": None}, TypeError, "dilations is required"),
    ({"pads_begin": None}, ValueError, "pads_begin: missing; required when auto_pad is none"),
    ({"pads_end": None, "auto_pad": "None"}, ValueError, "pads_end: missing; required when auto_pad is none"),
    ({"strides": 2}, TypeError, "strides: got 2, expected one int per spatial axis, for example strides=(2, 2)"),
    ({"strides": "21"}, TypeError, "strides: expected a sequence of ints, got '21' of type str"),
    ({"strides": b"21"}, TypeError, "strides: expected a sequence of ints, got b'21' of type bytes"),
    ({"strides": {2, 1}}, TypeError, "strides: expected a sequence of ints"),
    ({"strides": {2: 1, 1: 1}}, TypeError, "strides: expected a sequence of ints"),
    ({"strides": iter((2, 1))}, TypeError, "strides: expected a sequence of ints"),
    ({"strides": list}, TypeError, "strides: expected a sequence of ints"),
    ({"strides": (2.0, 1)}, TypeError, "strides: got 2.0 in (2.0, 1) of type float, expected an int"),
    ({"strides": (True, 1)}, TypeError, "strides: got True in (True, 1) of type bool, expected an int"),
    ({"strides": ("2", 1)}, TypeError, "strides: got '2' in ('2', 1) of type str, expected an int"),
    ({"strides": (0, 1)}, ValueError, "strides: got 0 in (0, 1), expected a positive int"),
    ({"strides": (1, -1)}, ValueError, "strides: got -1 in (1, -1), expected a positive int"),
    ({"strides": (1, 2**63)}, ValueError, "strides: got 9223372036854775808 in"),
    ({"strides": (1, BIG)}, ValueError, "expected at most 2**63 - 1 (s64)"),
    ({"strides": (1, -BIG)}, ValueError, "expected a positive int"),
    ({"strides": ()}, ValueError, "strides: () has 0 entries, expected 1 to 3, one per spatial axis"),
    ({"strides": (1,) * 4}, ValueError, "strides: (1, 1, 1, 1) has 4 entries, expected 1 to 3"),
    ({"strides": range(10**30)}, ValueError, "entries, expected at most 5"),
    ({"dilations": (0, 1)}, ValueError, "dilations: got 0 in (0, 1), expected a positive int"),
    (
        {"dilations": (1,)},
        ValueError,
        "dilations: (1,) has 1 entries, expected 2, one per spatial axis as in strides (2, 1)",
    ),
    ({"pads_begin": (-1, 0)}, ValueError, "pads_begin: got -1 in (-1, 0), expected a non-negative int"),
    ({"pads_end": (0, 0, 0)}, ValueError, "pads_end: (0, 0, 0) has 3 entries, expected 2"),
    ({"pads_end": []}, ValueError, "pads_end: () has 0 entries, expected 2"),
    (
        {"auto_pad": "same"},
        ValueError,
        "auto_pad: got 'same', expected 'none' or 'same_upper' or 'same_lower' or 'valid'",
    ),
    ({"auto_pad": 1}, TypeError, "auto_pad: got 1 of type int, expected 'none'"),
    ({"groups": 0}, ValueError, "groups: got 0, expected a positive int"),
    ({"groups": -1}, ValueError, "groups: got -1, expected a positive int"),
    ({"groups": True}, TypeError, "groups: got True of type bool, expected an int"),
    ({"groups": 1.0}, TypeError, "groups: got 1.0 of type float, expected an int"),
    ({"groups": None}, TypeError, "groups: got None of type NoneType, expected an int"),
    ({"groups": (1,)}, TypeError, "groups: got (1,) of type tuple, expected an int"),
    ({"groups": BIG}, ValueError, "groups: got <int of 16610 bits>, expected at most 2**63 - 1"),
    (
        {"data_format": "nxc"},
        ValueError,
        "data_format: got 'nxc', expected 'NXC' or 'NCX'; letter case matters",
    ),
    ({"data_format": "NHWC"}, ValueError, "data_format: got 'NHWC', expected 'NXC' or 'NCX'"),
    ({"data_format": None}, TypeError, "data_format: got None of type NoneType, expected 'NXC' or 'NCX'"),
    ({"filter_format": "HWIO"}, ValueError, "filter_format: got 'HWIO', expected 'XIO' or 'OIX'"),
    ({"weights_format": "oix"}, ValueError, "weights_format: got 'oix', expected 'XIO' or 'OIX'"),
    ({"filter_format": 3}, TypeError, "filter_format: got 3 of type int, expected 'XIO' or 'OIX'"),
]


@pytest.mark.parametrize(("attributes", "error", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
@pytest.mark.parametrize("operator", OPERATORS)
def test_bad_attributes(operator, attributes, error, message):
    with pytest.raises(error) as caught:
        operator(**{**GOOD, **attributes})
    assert message in str(caught.value)


@pytest.mark.parametrize("operator", CONV)
def test_convolution_has_five_filter_formats(operator):
    known = "'XIO' or 'OIX' or 'OXI' or 'XOI' or 'IOX'"
    with pytest.raises(ValueError, match=f"filter_format: got 'IXO', expected {known}$"):
        operator(**GOOD, filter_format="IXO")


@pytest.mark.parametrize("spelling", ["filter_shape", "weights_shape"])
@pytest.mark.parametrize("operator", FILTERS)
def test_bad_filter_shape(operator, spelling):
    with pytest.raises(ValueError, match=rf"^{spelling}: \(3, 3, 4\) has 3 entries, expected 4, two more"):
        operator(**GOOD, **{spelling: (3, 3, 4)})
    with pytest.raises(ValueError, match=rf"^{spelling}: got -1 in .*expected a non-negative int"):
        operator(**GOOD, **{spelling: (3, 3, 4, -1)})


@pytest.mark.parametrize("spelling", ["output_shape", "dst_shape"])
@pytest.mark.parametrize("operator", [ConvolutionBackpropData, ConvolutionBackwardData])
def test_bad_output_shape(operator, spelling):
    with pytest.raises(ValueError, match=rf"^{spelling}: \(1, 3, 3, 4, 4\) has 5 entries, expected 4"):
        operator(**GOOD, **{spelling: (1, 3, 3, 4, 4)})
    with pytest.raises(TypeError, match=rf"^{spelling}: got 1\.5 in .* of type float, expected an int"):
        operator(**GOOD, **{spelling: (1, 3, 3, 1.5)})


@pytest.mark.parametrize("operator", [op for op in OPERATORS if hasattr(op(**GOOD), "output_padding")])
def test_bad_output_padding(operator):
    for value, message in [((0,), "has 1 entries, expected 2"), ((0, -1), "expected a non-negative int")]:
        with pytest.raises(ValueError, match=rf"^output_padding: .*{message}"):
            operator(**GOOD, output_padding=value)
    assert operator(**GOOD, output_padding=[5, 0]).output_padding == (5, 0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_both_spellings_of_one_attribute(operator):
    with pytest.raises(
        TypeError, match=f"{operator.__name__}: filter_format 'XIO' and weights_format 'XIO' are two sp"
    ):
        operator(**GOOD, filter_format="XIO", weights_format="XIO")
    pairs = {"filter_shape": "weights_shape", "output_shape": "dst_shape"}
    if operator.shape_attribute:
        old, new = operator.shape_attribute, pairs[operator.shape_attribute]
        with pytest.raises(TypeError, match=rf"{old} \(1, 1, 1, 1\) and {new} \[2, 2, 2, 2\] are two spellings"):
            operator(**GOOD, **{old: (1, 1, 1, 1), new: [2, 2, 2, 2]})


@pytest.mark.parametrize(
    ("operator", "name", "hint"),
    [
        (ConvolutionBackpropFilters, "stride", " (did you mean 'strides'?), expected one of strides, "),
        (
            ConvolutionBackwardWeights,
            "weight_shape",
            " (did you mean 'weights_shape'?), expected one of strides, ",
        ),
        (ConvolutionBackpropFilters, "output_padding", ""),
        (ConvolutionBackwardWeights, "output_padding", ""),
        (ConvolutionBackpropFilters, "output_shape", ""),
        (ConvolutionBackpropData, "filter_shape", ""),
        (ConvTransposeBackpropData, "output_shape", ""),
        (ConvTransposeBackwardData, "xyzzy", ", expected one of strides, "),
    ],
)
def test_unknown_attribute(operator, name, hint):
    with pytest.raises(TypeError) as caught:
        operator(**GOOD, **{name: (1, 1)})
    message = str(caught.value)
    assert message.startswith(f"{operator.__name__}: unknown attribute '{name}'{hint}")
    for allowed in inspect.signature(operator).parameters:
        assert allowed == "unknown" or allowed in message.split("expected one of")[1]


def test_arrays_that_are_no_lists_of_ints():
    np = pytest.importorskip("numpy")
    for bad in (np.array([2.0, 1.0]), np.array([True, True]), np.array([[2, 1]]), np.array(2), [np.True_, 1]):
        with pytest.raises(TypeError, match=r"^strides: "):
            ConvolutionBackpropFilters(**{**GOOD, "strides": bad})


def test_tensors_that_are_no_lists_of_ints():
    torch = pytest.importorskip("torch")
    for bad in (
        torch.tensor([2.0, 1.0]),
        torch.tensor([True, True]),
        torch.tensor([[2, 1]]),
        torch.tensor(2),
    ):
        with pytest.raises(TypeError, match=r"^strides: "):
            ConvolutionBackpropFilters(**{**GOOD, "strides": bad})


def test_public_names():
    assert set(spec.__all__) >= {op.__name__ for op in OPERATORS} | {"Problem", "Geometry", "Gradient"}
    assert all(hasattr(spec, name) for name in spec.__all__)
