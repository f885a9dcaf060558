"""Layers of real networks, from benchdnn's lists, bit for bit as PyTorch computes them on small integers.

Here a sample; `python -m tests.benchdnn_all` runs every line in both directions.
"""

from __future__ import annotations

import pytest

from tests.support.cases.case import Case
from tests.support.cases.sampling import covering
from tests.support.oracles import benchdnn
from tests.support.oracles.data import needs
from tests.support.oracles.descriptors import Descriptor, descriptors

DESCRIPTORS = descriptors()
SAMPLE = [benchdnn.case_of(*picked) for picked in benchdnn.sample(DESCRIPTORS, count=300, most_flops=1e9)]


@needs("shapes")
def test_all_lists_are_there() -> None:
    assert len(DESCRIPTORS) > 7000
    assert len({descriptor.source.partition(":")[0] for descriptor in DESCRIPTORS}) >= 32
    assert len({case.operator for case in SAMPLE}) == 4


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        # everything given; the end pad follows: (112 - 1)*2 - 224 + 7 - 3 = 2
        ("mb3ic3iw224oc64ow112kw7sw2pw3", {"batch": 3, "x": (224,), "y": (112,), "pads_end": (2,)}),
        # one height stands for the width too, minibatch 2, dilation counts from zero
        ("g2ic4ih14oc6kh3dh1ph1", {"batch": 2, "groups": 2, "x": (14, 14), "dilations": (2, 2), "y": (12, 12)}),
        # pads left out: half of (5 - 1)*1 - 5 + 3 at the beginning
        ("ic1ih5oh5oc1kh3", {"pads_begin": (1, 1), "pads_end": (1, 1)}),
        # the last input is never read: pads_end would be -1
        ("ic1iw4oc1ow2kw1sw2pw0", {"y": (2,), "pads_end": (0,)}),
        ("ic1id3ih4oc1kd1kh2", {"x": (3, 4, 4), "k": (1, 2, 2), "y": (3, 3, 3)}),
    ],
)
def test_a_line_is_read_as_its_readme_says(text: str, sizes: dict[str, object]) -> None:
    conv = Descriptor("", f'{text}n"name_ih99"', deconvolution=False).convolution()
    assert {name: getattr(conv, name) for name in sizes} == sizes


def test_a_deconvolutions_output_is_the_big_side() -> None:
    conv = Descriptor("", 'mb1ic4iw5oc6ow11kw3sw2pw1_n"name"', deconvolution=True).convolution()
    assert (conv.y, conv.x, conv.o, conv.c, conv.pads_end) == ((5,), (11,), 4, 6, (0,))
    assert conv.beyond == (1,)  # pads_end would be -1: one more row that the transposed convolution adds


def test_what_no_descriptor_has_is_refused() -> None:
    with pytest.raises(ValueError, match="'x7' is no entry"):
        Descriptor("", "ic1ih5oc1kh3x7", deconvolution=False).convolution()


@needs("shapes")
@pytest.mark.parametrize("case", covering(SAMPLE))
def test_same_as_pytorch(case: Case) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
    assert benchdnn.wrong_elements(case) == 0
