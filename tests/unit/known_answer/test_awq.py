from __future__ import annotations

import numpy as np
import pytest

from fixtures.known_answer import awq


def test_unpacking_gives_back_what_was_packed():
    units = np.random.default_rng(0).integers(-8, 8, (24, 256), dtype=np.int8)
    packed = awq.pack(units, 0.25)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in packed.items()} == {
        "qweight": (np.int32, (256, 3)),
        "qzeros": (np.int32, (2, 3)),
        "scales": (np.float16, (2, 24)),
    }
    assert np.array_equal(awq.unpack(**packed), units * np.float32(0.25))


def test_columns_lie_in_the_order_of_the_gemm_kernels():
    units = np.arange(8, dtype=np.int8)[:, None].repeat(128, axis=1) - 8
    word = int(awq.pack(units, 1.0)["qweight"].view(np.uint32)[0, 0])
    assert [word >> 4 * nibble & 15 for nibble in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize(("shape", "value"), [((8, 100), 0), ((7, 128), 0), ((8, 128), 8), ((8, 128), -9)])
def test_what_does_not_fit_is_refused(shape, value):
    with pytest.raises(ValueError, match=r"divide|fit"):
        awq.pack(np.full(shape, value, np.int8), 1.0)
