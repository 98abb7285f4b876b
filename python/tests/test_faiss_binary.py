"""knear.faiss's indexes of bits beside FAISS's: their answers, their files to the byte, and what
they refuse."""

import numpy as np
import pytest
from faiss_pair import needs_faiss, ours, theirs

import knear


@pytest.fixture
def bits():
    """Few distinct bits, so that many rows are equally far."""
    return np.random.default_rng(1).integers(0, 256, (2000, 4), np.uint8)


def same_sets(found, wanted):
    """Distances alike, and ids but among equal distances: FAISS has no order of these."""
    (distances, ids), (far, others) = found, wanted
    np.testing.assert_array_equal(distances, far)
    assert distances.dtype == np.int32 and ids.dtype == np.int64
    for one, other, near in zip(ids, others, distances, strict=True):
        inside = near < near[-1]
        assert set(one[inside]) == set(other[inside])


@needs_faiss
def test_flat(bits):
    pair = [module.IndexBinaryFlat(32) for module in (ours, theirs)]
    for index in pair:
        assert (index.d, index.code_size, index.ntotal, index.is_trained) == (32, 4, 0, True)
        index.train(bits)
        index.add(bits)
        assert index.remove_ids(np.array([3, 4, 900, 77777])) == 3
        index.add(bits[:5])
        assert index.ntotal == 2002
    same_sets(*(index.search(bits[:50], 9) for index in pair))
    same_sets(*(index.search(bits[:2], 2010) for index in pair))
    for radius in (0, 1, 7, 12):
        a, b = (index.range_search(bits[:50], radius) for index in pair)
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype
    for name, *arguments in (("reconstruct", 1999), ("reconstruct_n", 5, 10), ("reconstruct_n",)):
        a, b = (getattr(index, name)(*arguments) for index in pair)
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(pair[0].xb.array, theirs.vector_to_array(pair[1].xb))
    few = [
        index.search(bits[:9], 4, params=m.SearchParameters(sel=m.IDSelectorRange(10, 300)))
        for index, m in zip(pair, (ours, theirs), strict=True)
    ]
    same_sets(*few)


@needs_faiss
@pytest.mark.parametrize("name", ["IndexBinaryIDMap", "IndexBinaryIDMap2"])
def test_ids_of_your_own(bits, name):
    ids = np.arange(10_000, 12_000)[::-1]
    pair = [getattr(module, name)(module.IndexBinaryFlat(32)) for module in (ours, theirs)]
    for index in pair:
        index.add_with_ids(bits, ids)
        assert index.remove_ids(ids[:100]) == 100
    same_sets(*(index.search(bits[100:150], 5) for index in pair))
    if name == "IndexBinaryIDMap2":
        np.testing.assert_array_equal(pair[0].reconstruct(10_007), pair[1].reconstruct(10_007))
        with pytest.raises(RuntimeError, match="id 5 is not in the index"):
            pair[0].reconstruct(5)
    other = getattr(ours, name)(ours.IndexBinaryFlat(32))
    other.add_with_ids(bits[:100], ids[:100])
    pair[0].merge_from(other, 50_000)
    assert (pair[0].ntotal, other.ntotal) == (2000, 0)
    assert pair[0].search(bits[:1], 1, params=None)[0][0, 0] == 0


@needs_faiss
def test_files_are_the_same_to_the_byte(bits, tmp_path):
    for made in (
        lambda m: m.IndexBinaryFlat(32),
        lambda m: m.IndexBinaryIDMap(m.IndexBinaryFlat(32)),
        lambda m: m.index_binary_factory(32, "IDMap2,BFlat"),
    ):
        for rows in (bits[:0], bits[:50]):
            pair = [made(module) for module in (ours, theirs)]
            for index in pair:
                if isinstance(index, (ours.IndexBinaryFlat, theirs.IndexBinaryFlat)):
                    index.add(rows)
                elif len(rows):
                    index.add_with_ids(rows, np.arange(7, 57))
            a, b = (m.serialize_index_binary(i) for m, i in zip((ours, theirs), pair, strict=True))
            np.testing.assert_array_equal(a, b)
            path = str(tmp_path / "a")
            theirs.write_index_binary(pair[1], path)
            back = ours.read_index_binary(path)
            assert type(back) is type(pair[0]) and back.ntotal == pair[0].ntotal
            ours.write_index_binary(back, path)
            assert theirs.read_index_binary(path).ntotal == pair[1].ntotal
            np.testing.assert_array_equal(ours.serialize_index_binary(back), a)
            assert ours.clone_binary_index(back).ntotal == back.ntotal


@needs_faiss
def test_knn_hamming(bits):
    same_sets(ours.knn_hamming(bits[:40], bits, 6), theirs.knn_hamming(bits[:40], bits, 6))


def test_ties_are_in_order_of_ids(bits):
    index = ours.IndexBinaryFlat(32)
    index.add(bits)
    distances, ids = index.search(bits[:60], 30)
    every = np.unpackbits(bits[:60, None] ^ bits[None], axis=2).sum(2)
    wanted = np.argsort(every, axis=1, kind="stable")[:, :30]
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(distances, np.take_along_axis(every, wanted, 1))
    near = knear.knn(bits[:60], bits, 30, metric="hamming")
    np.testing.assert_array_equal(near.ids, wanted)


def test_what_is_wrong_is_refused(bits, tmp_path):
    index = ours.IndexBinaryFlat(32)
    index.add(bits[:9])
    with pytest.raises(RuntimeError, match="d, the number of bits, must be a multiple of 8"):
        ours.IndexBinaryFlat(17)
    with pytest.raises(TypeError, match="must be uint8, eight bits a byte, but are float32"):
        index.search(bits.astype(np.float32), 1)
    with pytest.raises(AssertionError, match="vectors have 3 bytes, where 4 are due"):
        index.add(bits[:, :3].copy())
    with pytest.raises(AssertionError, match="k must be 1 at least"):
        index.search(bits, 0)
    with pytest.raises(RuntimeError, match="'BIVF16' is of no binary index"):
        ours.index_binary_factory(32, "BIVF16")
    with pytest.raises(NotImplementedError, match="IndexBinaryFlat"):
        ours.IndexBinaryIVF(32)
    with pytest.raises(RuntimeError, match="itself"):
        index.merge_from(index)
    with pytest.raises(RuntimeError, match="IndexBinaryIDMap"):
        index.add_with_ids(bits, np.arange(2000))
    with pytest.raises(TypeError, match="binary index"):
        ours.write_index_binary(ours.IndexFlatL2(4), str(tmp_path / "a"))
    whole = ours.serialize_index_binary(index)
    for end in range(len(whole)):
        with pytest.raises(RuntimeError, match="cut off|not recognized"):
            ours.deserialize_index_binary(whole[:end])
    for place in range(4, 33):
        for value in (0, 1, 127, 128, 255):
            broken = whole.copy()
            broken[place] = value
            try:
                assert ours.deserialize_index_binary(broken).ntotal == 9
            except RuntimeError as error:
                assert "\n" not in str(error)
