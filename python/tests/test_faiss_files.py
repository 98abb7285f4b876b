"""Files of FAISS, written and read by the real faiss-cpu."""

import contextlib

import numpy as np
import pytest

import knear

faiss = pytest.importorskip("faiss")


@pytest.fixture
def rows():
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((40, 12))
    picked = centres[rng.integers(0, 40, 3000)]
    return (picked + 0.3 * rng.standard_normal((3000, 12))).astype(np.float32)


def same(ours, theirs):
    """Equal neighbours; distances as float32 sums have them."""
    np.testing.assert_array_equal(ours[1], theirs[1])
    found = ours[1] >= 0  # FAISS pads with the largest float, knear with infinity
    np.testing.assert_allclose(ours[0][found], theirs[0][found], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("own", ["none", "map", "map2"])
def test_flat(rows, metric, own, tmp_path):
    path = str(tmp_path / "a.faiss")
    flat = (faiss.IndexFlatL2 if metric == "l2" else faiss.IndexFlatIP)(12)
    ids = np.random.default_rng(2).permutation(9000)[: len(rows)].astype(np.int64)
    if own == "none":
        theirs = flat
        theirs.add(rows)
    else:
        theirs = (faiss.IndexIDMap if own == "map" else faiss.IndexIDMap2)(flat)
        theirs.add_with_ids(rows, ids)
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    assert (ours.factory, ours.metric, len(ours)) == ("Flat", metric, 3000)
    same(ours.search(rows[:50], 5), theirs.search(rows[:50], 5))
    ours.write_faiss(path)
    again = faiss.read_index(path)
    assert again.ntotal == 3000
    same(ours.search(rows[:50], 5), again.search(rows[:50], 5))


@pytest.mark.parametrize("lists", [20, 2000])  # of the latter few have rows: sizes are sparse
def test_inverted_lists(rows, lists, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.IndexIVFFlat(faiss.IndexFlatL2(12), 12, lists)
    theirs.train(rows if lists == 20 else np.concatenate([rows, 50 + rows]))
    theirs.add_with_ids(rows, np.arange(100, 3100))
    theirs.nprobe = 3
    theirs.set_direct_map_type(faiss.DirectMap.Hashtable)
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    assert (ours.factory, len(ours)) == (f"IVF{lists},Flat", 3000)
    centroids = faiss.vector_to_array(faiss.downcast_index(theirs.quantizer).codes).view(np.float32)
    np.testing.assert_array_equal(ours.centroids.ravel(), centroids)
    same(ours.search(rows[:50], 5, probes=3), theirs.search(rows[:50], 5))
    ours.write_faiss(path)
    again = faiss.read_index(path)
    again.nprobe = 3
    same(ours.search(rows[:50], 5, probes=3), again.search(rows[:50], 5))
    again.add(rows[:10])
    assert again.ntotal == 3010


def test_inverted_lists_of_products(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.index_factory(12, "IVF20,Flat", faiss.METRIC_INNER_PRODUCT)
    theirs.train(rows)
    theirs.add(rows)
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    assert (ours.factory, ours.metric, len(ours)) == ("IVF20,Flat", "ip", 3000)
    centroids = faiss.vector_to_array(faiss.downcast_index(theirs.quantizer).codes).view(np.float32)
    np.testing.assert_array_equal(ours.centroids.ravel(), centroids)
    theirs.nprobe = 3
    same(ours.search(rows[:50], 5, probes=3), theirs.search(rows[:50], 5))
    flat = faiss.IndexFlatIP(12)
    flat.add(rows)
    same(ours.search(rows[:50], 5, recall=1), flat.search(rows[:50], 5))
    ours.write_faiss(path)
    again = faiss.read_index(path)
    again.nprobe = 20
    same(again.search(rows[:50], 5), flat.search(rows[:50], 5))


def test_an_index_that_is_not_trained(tmp_path):
    path = str(tmp_path / "a.faiss")
    faiss.write_index(faiss.IndexIVFFlat(faiss.IndexFlatL2(12), 12, 7), path)
    ours = knear.Index.load(path)
    assert (ours.factory, ours.is_trained) == ("IVF7,Flat", False)


def test_what_is_not_read(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    for factory, word in (
        ("PCA4,Flat", "transforms before vectors"),
        ("PQ4x6", "6 bits"),
        ("SQ6", "FAISS's type 6"),
        ("IVF20,SQfp16", "halves are of residuals"),
        ("HNSW8", "IHNf"),
    ):
        theirs = faiss.index_factory(12, factory)
        theirs.train(rows)
        theirs.add(rows[:300])
        faiss.write_index(theirs, path)
        with pytest.raises(knear.CorruptFile, match=word):
            knear.Index.load(path)
    faiss.write_index(faiss.IndexFlat(12, faiss.METRIC_L1), path)
    with pytest.raises(knear.CorruptFile, match="metric 2"):
        knear.Index.load(path)


def test_damaged_files_are_refused(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.IndexIVFFlat(faiss.IndexFlatL2(12), 12, 4)
    theirs.train(rows[:200])
    theirs.add(rows[:200])
    faiss.write_index(theirs, path)
    whole = (tmp_path / "a.faiss").read_bytes()
    cut = tmp_path / "b.faiss"
    for length in range(4, len(whole), 97):
        cut.write_bytes(whole[:length])
        with pytest.raises(knear.CorruptFile):
            knear.Index.load(cut)
    cut.write_bytes(whole + b"x")
    with pytest.raises(knear.CorruptFile, match="1 bytes follow the index"):
        knear.Index.load(cut)
    rng = np.random.default_rng(1)
    for _ in range(300):  # whatever is in it, it is read or refused
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 700), 3):
            damaged[place] = rng.integers(0, 256)
        cut.write_bytes(damaged)
        with contextlib.suppress(knear.CorruptFile, knear.MemoryBudgetError):
            knear.Index.load(cut)


def test_what_cannot_be_written(rows, tmp_path):
    path = tmp_path / "a.faiss"
    cosine = knear.Index("Flat", dim=12, metric="cosine")
    cosine.add(rows)
    with pytest.raises(knear.InvalidArgument, match="cosine, which FAISS has not"):
        cosine.write_faiss(path)
    doubles = knear.Index("Flat", dim=12)
    doubles.add(rows.astype(np.float64) + 1e-12)
    with pytest.raises(knear.InvalidArgument, match="float32, which FAISS has, does not hold"):
        doubles.write_faiss(path)
    with pytest.raises(knear.InvalidArgument, match="is not trained"):
        knear.Index("IVF8,Flat", dim=12).write_faiss(path)
    assert not path.exists()


def near(ours, theirs, many_equal=False):
    """Equal distances, as float32 sums have them; ids may differ where distances hardly do."""
    found = ours[1] >= 0
    np.testing.assert_array_equal(found, theirs[1] >= 0)
    np.testing.assert_allclose(ours[0][found], theirs[0][found], rtol=2e-3, atol=2e-3)
    assert many_equal or (ours[1] == theirs[1]).mean() > 0.9


def probing(theirs, lists):
    """Sets nprobe of the inverted lists in an index of FAISS."""
    if lists:
        inner = theirs.base_index if isinstance(theirs, faiss.IndexRefine) else theirs
        faiss.extract_index_ivf(faiss.downcast_index(inner)).nprobe = 3
    return theirs


CODED = [
    "PQ4",
    "PQ6x4",
    "SQ8",
    "SQ4",
    "SQfp16",
    "IVF20,PQ4",
    "IVF20,PQ6x4",
    "IVF20,SQ8",
    "OPQ4_8,IVF20,PQ4",
    "PCA8,PQ4",
    "PCAR8,IVF20,SQ8",
    "L2norm,RR12,PQ4",
    "IVF20,PQ4,RFlat",
    "OPQ3_6,PQ3,RFlat",
]


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("string", CODED)
def test_codes(rows, string, metric, tmp_path):
    path = str(tmp_path / "a.faiss")
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    theirs = faiss.index_factory(12, string, kind)
    theirs.train(rows)
    theirs.add(rows)
    lists = 20 if "IVF" in string else 0
    probing(theirs, lists)
    if "RFlat" in string:
        theirs.k_factor = 4
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    assert (ours.metric, len(ours), ours.dim, ours.lists) == (metric, 3000, 12, lists)
    asked = {"probes": 3} if lists else {}
    near(ours.search(rows[:200], 5, **asked), theirs.search(rows[:200], 5), "x4" in string)
    # And back, with ids of our own, after changes.
    ours.remove([17, 5])
    ours.add(rows[:40] + np.float32(0.11), ids=np.arange(9000, 9040))
    ours.write_faiss(path)
    again = faiss.read_index(path)
    assert again.ntotal == len(ours) == 3038
    base = faiss.downcast_index(again.index)
    probing(base, lists)
    if "RFlat" in string:
        base.k_factor = 4
    near(ours.search(rows[:200], 5, **asked), again.search(rows[:200], 5), "x4" in string)


@pytest.mark.parametrize("string", CODED)
def test_codes_of_our_own(rows, string, tmp_path):
    if string == "SQfp16":
        pytest.skip("learns nothing")
    path = str(tmp_path / "a.faiss")
    ours = knear.Index(string, dim=12)
    ours.train(rows)
    ours.add(rows)
    ours.write_faiss(path)
    theirs = faiss.read_index(path)
    lists = ours.lists
    probing(theirs, lists)
    asked = {"probes": 3} if lists else {}
    near(ours.search(rows[:200], 5, **asked), theirs.search(rows[:200], 5), "x4" in string)
    again = knear.Index.load(path)
    found, expected = again.search(rows[:200], 5, **asked), ours.search(rows[:200], 5, **asked)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
