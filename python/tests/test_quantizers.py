"""knear.ProductQuantizer against plain NumPy."""

import numpy as np
import pytest

import knear


def by_numpy(x, centroids):
    """The nearest centroid of each part [n x m], and the squared distances of all."""
    m, _, width = centroids.shape
    parts = x.astype(np.float64).reshape(len(x), m, 1, width)
    squares = ((parts - centroids[None].astype(np.float64)) ** 2).sum(-1)
    return squares.argmin(-1), squares


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8])
def test_codes_and_distances(rng, bits, dtype):
    x = (40 * rng.random((400, 12))).astype(dtype)
    pq = knear.ProductQuantizer(3, bits, iterations=5).train(x)
    assert pq.centroids.shape == (3, 2**bits, 4)
    codes = pq.encode(x)
    nearest, squares = by_numpy(x, pq.centroids)
    if bits == 8:
        np.testing.assert_array_equal(codes, nearest)
    else:
        assert codes.shape == (400, 2)
        np.testing.assert_array_equal(codes[:, 0] & 15, nearest[:, 0])
        np.testing.assert_array_equal(codes[:, 0] >> 4, nearest[:, 1])
        np.testing.assert_array_equal(codes[:, 1], nearest[:, 2])
    assert pq.code_size == codes.shape[1] and codes.dtype == np.uint8
    rough = pq.decode(codes)
    wanted = np.stack([pq.centroids[m][nearest[:, m]] for m in range(3)], axis=1)
    np.testing.assert_array_equal(rough, wanted.reshape(400, 12))
    found = pq.distances(x[:7], codes)
    sums = sum(squares[:7, m][:, nearest[:, m]] for m in range(3))
    np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-3)
    products = pq.distances(x[:7], codes, metric="ip")
    np.testing.assert_allclose(products, x[:7].astype(float) @ rough.T, rtol=1e-5, atol=1e-2)


def test_same_bits(rng):
    x = rng.standard_normal((3000, 16)).astype(np.float32)
    first = knear.ProductQuantizer(4, seed=5, most_rows=1000, threads=1).train(x)
    for threads in (2, 5):
        again = knear.ProductQuantizer(4, seed=5, most_rows=1000, threads=threads).train(x)
        np.testing.assert_array_equal(first.centroids, again.centroids)
        np.testing.assert_array_equal(first.encode(x), again.encode(x))
    other = knear.ProductQuantizer(4, seed=6, most_rows=1000).train(x)
    assert (first.centroids != other.centroids).any()


def test_errors(rng):
    x = rng.standard_normal((300, 12)).astype(np.float32)
    pq = knear.ProductQuantizer(3)
    for call in (
        lambda: pq.encode(x),
        lambda: pq.centroids,
        lambda: pq.decode(np.zeros((1, 3), np.uint8)),
        lambda: pq.code_size,
        lambda: pq.distances(x, np.zeros((1, 3), np.uint8)),
    ):
        with pytest.raises(knear.InvalidArgument, match="call train"):
            call()
    assert "not trained" in repr(pq)
    with pytest.raises(knear.InvalidArgument, match="sub_quantizers must divide.*but is 5"):
        knear.ProductQuantizer(5).train(x)
    with pytest.raises(knear.InvalidArgument, match="bits must be 4 or 8, but is 5"):
        knear.ProductQuantizer(3, 5).train(x)
    with pytest.raises(knear.InvalidArgument, match="rows are 100, but 8 bits take 256"):
        knear.ProductQuantizer(3).train(x[:100])
    x[17, 3] = np.nan
    with pytest.raises(knear.InvalidArgument, match="row 17"):
        pq.train(x)
    x[17, 3] = 0
    pq.train(x)
    codes = pq.encode(x)
    assert repr(pq) == "<knear.ProductQuantizer 3x8, dim=12>"
    with pytest.raises(knear.InvalidArgument, match="codes must be uint8, but has type int64"):
        pq.decode(codes.astype(np.int64))
    with pytest.raises(knear.InvalidArgument, match="codes must have 2 dimensions, but has 1"):
        pq.decode(codes[0])
    with pytest.raises(knear.ShapeMismatch, match="codes have 2 columns"):
        pq.decode(codes[:, :2])
    with pytest.raises(knear.ShapeMismatch, match="rows have 11 columns, the quantizer 12"):
        pq.encode(x[:, :11])
    with pytest.raises(knear.InvalidArgument, match="metric must be l2 or ip"):
        pq.distances(x, codes, metric="cosine")
    with pytest.raises(knear.InvalidArgument, match="sub_quantizers"):
        knear.ProductQuantizer(3.5)
