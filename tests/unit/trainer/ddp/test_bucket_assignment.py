"""Assignment of gradients to buckets and the caps, without a process group."""

import dataclasses

import numpy as np
import pytest

from gradmesh.trainer.ddp.bucket_assignment import GradientSpec, assign_buckets, offsets
from gradmesh.trainer.ddp.options import CAP_BYTES, FIRST_CAP_BYTES, MIB, NO_LIMIT, BucketCaps


def specs(*kinds, sparse=()):
    return [
        GradientSpec(f"p{i}", (size,), np.dtype(dtype), is_sparse=i in sparse)
        for i, (dtype, size) in enumerate(kinds)
    ]


MIXED = [("f4", 50), ("f8", 25)] * 3


def test_compute_bucket_assignment_single_limit_single_dtype():
    found = assign_buckets(specs(*[("f4", size) for size in (100, 200, 100, 50)]), [400])
    assert [bucket.indices for bucket in found] == [(0,), (1,), (2,), (3,)]


def test_compute_bucket_assignment_single_limit_multi_dtype():
    found = assign_buckets(specs(*MIXED), [400])
    assert [bucket.indices for bucket in found] == [(0, 2), (1, 3), (4,), (5,)]


def test_compute_bucket_assignment_multi_limit_single_dtype():
    found = assign_buckets(specs(*[("f4", 10)] * 4), [40, 80])
    assert [bucket.indices for bucket in found] == [(0,), (1, 2), (3,)]
    assert [bucket.limit_bytes for bucket in found] == [40, 80, 80]


def test_compute_bucket_assignment_multi_limit_multi_dtype():
    found = assign_buckets(specs(*MIXED), [200, 400])
    assert [bucket.indices for bucket in found] == [(0,), (1,), (2, 4), (3, 5)]
    assert [bucket.limit_bytes for bucket in found] == [200, 200, 400, 400]


def test_a_sparse_gradient_has_a_bucket_to_itself():
    found = assign_buckets(specs(*[("f4", 10)] * 4, sparse={1}), [1000])
    assert [(b.indices, b.limit_bytes) for b in found] == [((0, 2, 3), 1000), ((1,), 0)]


def test_a_given_order_is_kept():
    found = assign_buckets(specs(*[("f4", 10)] * 5), [80], order=[4, 2, 0, 3, 1])
    assert [bucket.indices for bucket in found] == [(4, 2), (0, 3), (1,)]


def test_devices_do_not_mix():
    first = GradientSpec("a", (10,), np.dtype("f4"), "cuda:0")
    second = dataclasses.replace(first, name="b", device="cuda:1")
    assert [b.indices for b in assign_buckets([first, second, first], [1000])] == [(0, 2), (1,)]


def test_no_limits_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        assign_buckets(specs(("f4", 1)), [])


def test_offsets_leave_no_gaps():
    assert offsets(specs(("f4", 3), ("f4", 0), ("f4", 5))) == [0, 3, 3, 8]


class TestBucketCapacityConfig:
    def test_default(self):
        assert BucketCaps().cap_bytes == CAP_BYTES == 25 * MIB
        assert BucketCaps().limits == [FIRST_CAP_BYTES, CAP_BYTES]

    def test_custom_is_uniform(self):
        assert BucketCaps(5).limits == [5 * MIB]
        assert BucketCaps(1.5).cap_bytes == MIB + MIB // 2
        assert BucketCaps(0.001).limits == [1048]

    def test_list_overrides_and_its_greatest_is_the_cap(self):
        caps = BucketCaps(7, (1, 10, 4))
        assert caps.limits == [MIB, 10 * MIB, 4 * MIB]
        assert caps.cap_bytes == 10 * MIB

    def test_caps_are_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            BucketCaps().cap_mb = 3

    @pytest.mark.parametrize(
        ("caps", "options", "limits"),
        [
            (BucketCaps(), {"static_graph": True, "find_unused": False}, [NO_LIMIT]),
            (BucketCaps(5), {"static_graph": True, "find_unused": True}, [NO_LIMIT]),
            (BucketCaps(5), {"static_graph": False, "find_unused": False}, [NO_LIMIT]),
            (BucketCaps(), {"static_graph": False, "find_unused": True}, [MIB, 25 * MIB]),
            (BucketCaps(5), {"static_graph": False, "find_unused": True}, [5 * MIB]),
            (BucketCaps(5, (1, 2)), {"static_graph": False, "find_unused": True}, [MIB, 2 * MIB]),
            (BucketCaps(5, (1, 2)), {"static_graph": False, "find_unused": False}, [MIB, 2 * MIB]),
        ],
    )
    def test_initial_limits(self, caps, options, limits):
        assert caps.initial_limits(**options) == limits

    @pytest.mark.parametrize("bad", [{"cap_mb": -1}, {"caps_mb": (1, -2)}, {"caps_mb": ()}])
    def test_bad_caps_are_refused(self, bad):
        with pytest.raises(ValueError, match="cap"):
            BucketCaps(**bad)
