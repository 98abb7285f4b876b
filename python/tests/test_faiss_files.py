"""Files of FAISS as knear.Index writes and reads them, by the real faiss-cpu (test_faiss_io.py: as
knear.faiss does)."""

import contextlib
import re

import knear.faiss
import numpy as np
import pytest

import knear

faiss = pytest.importorskip("faiss")


def made(string, metric="l2"):
    """An index of FAISS, without the slow training for a kind of search that is not tried here."""
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(12, re.sub(r"(?<!O)(PQ\d+)(?=[,)]|$)", r"\1np", string), kind)
    if string.startswith("OPQ"):
        refined = hasattr(index, "base_index")
        around = faiss.downcast_index(index.base_index) if refined else index
        faiss.downcast_VectorTransform(around.chain.at(0)).niter = 5
    return index


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


@pytest.mark.parametrize(
    "factory, name",
    [
        ("IVF20,FlatDedup", "an IndexIVFFlatDedup (IwFd)"),
        ("IVF20,FlatPanorama4_16", "an IndexIVFFlatPanorama (IwP2)"),
        ("IVF20,PQ4+4", "an IndexIVFPQR (IwQR)"),
        ("Flat,RefinePanorama(Flat)", "an IndexRefinePanorama (IxRP)"),
        ("HNSW8", "an IndexHNSWFlat (IHNf)"),
        ("HNSW8_PQ4np", "an IndexHNSWPQ (IHNp)"),
        ("HNSW8_SQ8", "an IndexHNSWSQ (IHNs)"),
        ("HNSW8,RaBitQ", "an IndexHNSWRaBitQ (IHNr)"),
        ("NSG8", "an IndexNSGFlat (INSf)"),
        ("LSH", "an IndexLSH (IxHe)"),
        ("RQ2x4", "an IndexResidualQuantizer (IxRq)"),
        ("PRQ2x2x4", "an IndexProductResidualQuantizer (IxPR)"),
        ("IVF20,RQ2x4", "an IndexIVFResidualQuantizer (IwRQ)"),
        ("IVF20,ITQ8,SH", "an IndexIVFSpectralHash (IwSh)"),
        ("RaBitQ", "an IndexRaBitQ (Ixrq)"),
        ("RaBitQ4", "an IndexRaBitQ (Ixrr)"),
        ("RaBitQfs", "an IndexRaBitQFastScan (Irfn)"),
        ("IVF20,RaBitQ", "an IndexIVFRaBitQ (Iwrq)"),
        ("IVF20,RaBitQfs", "an IndexIVFRaBitQFastScan (Iwrn)"),
        ("EDEN4", "an IndexEDEN (IxEe)"),
        ("IVF20,EDEN4", "an IndexIVFEDEN (IwEe)"),
        ("Residual2x4,PQ4", "an Index2Layer (Ix2L)"),
        ("IDMap,LSH", "an IndexLSH (IxHe) at byte 37"),
        ("IMI2x4,Flat", "a MultiIndexQuantizer (Imiq) at byte 53"),
        ("IVF20_HNSW8,Flat", "an IndexHNSWFlat (IHNf) at byte 53"),
        ("ITQ8,Flat", "an ITQTransform (Viqt) at byte 41"),
        ("Pad20,Flat", "a RemapDimensionsTransform (RmDT) at byte 41"),
        ("HR,Flat", "a HadamardRotation (HRot) at byte 41"),
    ],
)
def test_what_is_not_read_is_named(rows, factory, name, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.index_factory(12, factory)
    theirs.train(rows)
    if factory.startswith("IDMap"):
        theirs.add_with_ids(rows[:300], np.arange(300))
    else:
        theirs.add(rows[:300])
    faiss.write_index(theirs, path)
    with pytest.raises(knear.InvalidArgument) as refused:
        knear.Index.load(path)
    reads = "knear does not read"
    if "RemapDimensions" in name:
        reads = "knear.Index does not read, but knear.faiss.read_index in Python does"
    assert str(refused.value) == f"{path} holds {name}, which {reads}"
    what = name.partition(" at byte")[0]
    if "RemapDimensions" in what:
        assert knear.faiss.read_index(path).ntotal == 300
    else:
        with pytest.raises(NotImplementedError) as refused:
            knear.faiss.read_index(path)
        assert str(refused.value) == f"the file has {what}, which knear.faiss has not"


def test_lists_on_disk_are_named(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.index_factory(12, "IVF20,Flat")
    theirs.train(rows)
    lists = faiss.OnDiskInvertedLists(20, theirs.code_size, str(tmp_path / "lists"))
    theirs.replace_invlists(lists)
    theirs.add(rows)
    faiss.write_index(theirs, path)
    with pytest.raises(knear.InvalidArgument, match=r"lists on disk, in a file of .* \(ilod\)"):
        knear.Index.load(path)


def test_binary_indexes_are_named(tmp_path):
    path = str(tmp_path / "a.faiss")
    faiss.write_index_binary(faiss.IndexBinaryFlat(16), path)
    with pytest.raises(knear.InvalidArgument, match=r"an IndexBinaryFlat \(IBxF\), which knear"):
        knear.Index.load(path)


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        ("PQ4x6np", "a ProductQuantizer of 6 bits"),
        ("IVF20,PQ4x6np", "a ProductQuantizer of 6 bits"),
        ("SQ6", r"a ScalarQuantizer of type QT_6bit \(6\)"),
        ("IVF20,SQ6", r"a ScalarQuantizer of type QT_6bit \(6\)"),
        ("PQ4,Refine(IVF20,Flat)", "an IndexRefine whose refine_index is of another type"),
        ("Flat,Refine(SQ8)", "an IndexRefine of an index without codes"),
        ("IVF20,Flat,Refine(SQ8)", "an IndexRefine of an index without codes"),
        ("PCA8,Flat,RFlat", "an IndexRefineFlat of an index without codes"),
        ("PCA8,SQ8 in refine", "an IndexRefine behind transforms"),
        ("Linf Flat", r"vectors that are compared by METRIC_Linf \(3\)"),
        ("L1 norm", "a NormalizationTransform by norm 1"),
        ("untrained", r"a PCAMatrix \(Pcam\) that is not trained"),
        ("products by L2", "inverted lists that are found by l2, of rows by ip"),
    ],
)
def test_what_only_knear_faiss_reads_is_named(rows, factory, what, tmp_path):
    path = str(tmp_path / "a.faiss")
    if factory == "Linf Flat":
        theirs = faiss.IndexFlat(12, faiss.METRIC_Linf)
    elif factory == "L1 norm":
        norm = faiss.NormalizationTransform(12, 1.0)
        theirs = faiss.IndexPreTransform(norm, faiss.IndexFlat(12))
    elif factory == "untrained":
        theirs = faiss.index_factory(12, "PCA8,Flat")
    elif factory == "PCA8,SQ8 in refine":
        inner = faiss.IndexRefineFlat(faiss.index_factory(8, "SQ8"))
        theirs = faiss.IndexPreTransform(faiss.PCAMatrix(12, 8), inner)
    elif factory == "products by L2":
        theirs = faiss.IndexIVFFlat(faiss.IndexFlatL2(12), 12, 20, faiss.METRIC_INNER_PRODUCT)
    else:
        theirs = made(factory)
    if factory not in ("untrained", "L1 norm"):  # of which FAISS itself applies none
        theirs.train(rows)
        theirs.add(rows[:300])
    faiss.write_index(theirs, path)
    message = f"^{re.escape(path)} holds {what}, which knear.Index does not read, but "
    message += "knear.faiss.read_index in Python does($|; knear.Index reads )"
    with pytest.raises(knear.InvalidArgument, match=message):
        knear.Index.load(path)
    assert knear.faiss.read_index(path).ntotal == theirs.ntotal


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        ("SQ8_direct", r"an IndexIVFScalarQuantizer of QT_8bit_direct with by_residual"),
        ("L1 lists", r"vectors that are compared by METRIC_L1 \(2\)"),
    ],
)
def test_what_neither_reads_is_named(rows, factory, what, tmp_path):
    path = str(tmp_path / "a.faiss")
    if factory == "L1 lists":
        theirs = faiss.IndexIVFFlat(faiss.IndexFlat(12, faiss.METRIC_L1), 12, 4, faiss.METRIC_L1)
    else:
        direct = faiss.ScalarQuantizer.QT_8bit_direct
        args = (faiss.METRIC_L2, True)
        theirs = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatL2(12), 12, 4, direct, *args)
    theirs.train(rows)
    faiss.write_index(theirs, path)
    message = f"^{re.escape(path)} holds {what}, which knear does not read$"
    with pytest.raises(knear.InvalidArgument, match=message):
        knear.Index.load(path)
    with pytest.raises((NotImplementedError, RuntimeError)):
        knear.faiss.read_index(path)


def test_flat_by_l1(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.IndexFlat(12, faiss.METRIC_L1)
    theirs.add(rows)
    faiss.write_index(theirs, path)
    index = knear.Index.load(path)
    assert (index.metric, index.factory, len(index)) == ("l1", "Flat", len(rows))
    wanted = theirs.search(rows[:50], 5)
    for found in (index.search(rows[:50], 5), knear.knn(rows[:50], rows, 5, metric="l1")):
        np.testing.assert_array_equal(found.ids, wanted[1])
        np.testing.assert_allclose(found.distances, wanted[0], rtol=1e-5)
    index.write_faiss(str(tmp_path / "b.faiss"))
    back = faiss.read_index(str(tmp_path / "b.faiss"))
    assert back.metric_type == faiss.METRIC_L1
    np.testing.assert_array_equal(back.search(rows[:50], 5)[1], wanted[1])


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
        with contextlib.suppress(knear.CorruptFile, knear.InvalidArgument, knear.MemoryBudgetError):
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
    """Sets nprobe of the inverted lists in an index of FAISS, and how many codes are refined: so
    many that it does not matter which of equal ones are."""
    inner = theirs
    if isinstance(inner, faiss.IndexIDMap):
        inner = faiss.downcast_index(inner.index)
    if isinstance(inner, faiss.IndexRefine):
        inner.k_factor = 40
        inner = inner.base_index
    if lists:
        faiss.extract_index_ivf(faiss.downcast_index(inner)).nprobe = 3
    return theirs


CODED = [
    "PQ4",
    "PQ6x4",
    "SQ8",
    "SQ4",
    "SQfp16",
    "SQbf16",
    "IVF20,PQ4",
    "IVF20,PQ6x4",
    "IVF20,SQ8",
    "OPQ4_8,IVF20,PQ4",
    "PCA8,PQ4",
    "PCAR8,IVF20,SQ8",
    "L2norm,RR12,PQ4",
    "IVF20,PQ4,RFlat",
    "OPQ3_6,PQ3,RFlat",
    "IVF20,PQ4,Refine(SQ8)",
    "PQ4,Refine(SQ4)",
    "PCA8,IVF20,PQ4,Refine(SQfp16)",
    "SQ4,Refine(SQbf16)",
    "IVF20,PQ4x4,Refine(PQ12)",
    "SQ4,Refine(PQ6x4)",
    "PCA8,Flat",
    "PCAWR6,Flat",
    "OPQ4_8,Flat",
    "L2norm,Flat",
    "RR14,IVF20,Flat",
    "PCA8,IVF20,Flat",
    "PCA8,SQfp16",
    "L2norm,IVF20,SQfp16",
    "IVF20,SQfp16",
    "IVF20,SQbf16",
]
# An index of knear is written as its own kind.
TYPES = {"SQfp16": "IndexScalarQuantizer", "IVF20,SQfp16": "IndexIVFScalarQuantizer"}


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("string", CODED)
def test_codes(rows, string, metric, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = made(string, metric)
    theirs.train(rows)
    theirs.add(rows)
    lists = 20 if "IVF" in string else 0
    probing(theirs, lists)
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    assert (ours.metric, len(ours), ours.dim, ours.lists) == (metric, 3000, 12, lists)
    asked = {"probes": 3} if lists else {}
    asked |= {"refine_factor": 40} if "Re" in string or "RFlat" in string else {}
    near(ours.search(rows[:200], 5, **asked), theirs.search(rows[:200], 5), "x4" in string)
    # In a file of our own.
    own = str(tmp_path / "a.knear")
    ours.save(own)
    same(knear.Index.load(own).search(rows[:9], 5, **asked), ours.search(rows[:9], 5, **asked))
    # And back, with ids of our own, after changes.
    ours.remove([17, 5])
    ours.add(rows[:40] + np.float32(0.11), ids=np.arange(9000, 9040))
    ours.write_faiss(path)
    again = faiss.read_index(path)
    assert again.ntotal == len(ours) == 3038
    probing(again, lists)
    near(ours.search(rows[:200], 5, **asked), again.search(rows[:200], 5), "x4" in string)


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("kind", ["QT_8bit_uniform", "QT_4bit_uniform", "QT_8bit_direct_signed"])
@pytest.mark.parametrize("lists", [0, 20])
def test_ranges_of_all_columns(rows, kind, lists, metric, tmp_path):
    path = str(tmp_path / "a.faiss")
    by = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    type_ = getattr(faiss.ScalarQuantizer, kind)
    whole = np.round(rows * 20)
    if lists:
        flat = faiss.IndexFlat(12, by)
        theirs = faiss.IndexIVFScalarQuantizer(flat, 12, lists, type_, by, False)
    else:
        theirs = faiss.IndexScalarQuantizer(12, type_, by)
    theirs.train(whole)
    theirs.add(whole)
    probing(theirs, lists)
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    asked = {"probes": 3} if lists else {}
    near(ours.search(whole[:200], 5, **asked), theirs.search(whole[:200], 5), "4bit" in kind)


def exact_among(found, stand_for, queries, metric):
    """Distances of what FAISS's codes of these ids stand for."""
    of = stand_for[found[1]]
    gaps = queries[:, None, :] - of
    exact = (gaps**2).sum(2) if metric == "l2" else (queries[:, None, :] * of).sum(2)
    np.testing.assert_allclose(found[0], exact, rtol=1e-4, atol=1e-4)


def coded_by(theirs, rows):
    """What codes stand for of rows that an index of FAISS was given, without its blocks."""
    if not isinstance(theirs, faiss.IndexIVF):
        return theirs.pq.decode(theirs.pq.compute_codes(rows))
    lists = theirs.quantizer.search(rows, 1)[1].ravel()
    beside = theirs.quantizer.reconstruct_batch(lists) if theirs.by_residual else 0 * rows
    return beside + theirs.pq.decode(theirs.pq.compute_codes(rows - beside))


# FAISS's own distances there are sums of a byte for each part.
@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize(
    "string",
    [
        "PQ4x4fs",
        "PQ3x4fs",
        "PQ6x4fs_64",
        "IVF20,PQ6x4fs",
        "IVF20,PQ3x4fsr",
        "IVF20,PQ6x4fsr_96",
        "OPQ4_8,IVF20,PQ4x4fs",
        "IDMap2,PQ4x4fs",
        "IVF20,PQ6x4fs,RFlat",
        "PQ6x4fs,Refine(SQ8)",
    ],
)
@pytest.mark.parametrize("count", [3000, 1, 45])
def test_codes_in_blocks(rows, string, count, metric, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = made(string, metric)
    theirs.train(rows)
    ids = np.arange(count)
    if "IDMap" in string:
        ids = np.random.default_rng(3).permutation(9000)[:count]
        theirs.add_with_ids(rows[:count], ids)
    else:
        theirs.add(rows[:count])
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    lists = 20 if "IVF" in string else 0
    assert (ours.metric, len(ours), ours.dim, ours.lists) == (metric, count, 12, lists)
    assert set(ours.ids.tolist()) == set(ids.tolist())
    asked = {"probes": 20} if lists else {}
    k = min(count, 5)
    found = ours.search(rows[:100], k, **asked)
    as_faiss = knear.faiss.read_index(path)
    assert (as_faiss.ntotal, as_faiss.d) == (count, 12)
    if "Re" not in string and "RFlat" not in string:
        if lists:
            knear.faiss.extract_index_ivf(as_faiss).nprobe = 20
        distances, which = as_faiss.search(rows[:100], k)
        np.testing.assert_allclose(distances, found[0], rtol=1e-5, atol=1e-5)
        if "IDMap" not in string:  # equal ones are in the order of adding, not of their ids
            assert (which == found[1]).mean() > 0.95
    if "Re" in string or "RFlat" in string:
        found = ours.search(rows[:100], k, refine_factor=40, **asked)
        probing(theirs, 0)
        if lists:
            faiss.extract_index_ivf(faiss.downcast_index(theirs.base_index)).nprobe = 20
        expected = theirs.search(rows[:100], k)
        assert (found[1] == expected[1]).mean() > 0.9
        return
    if lists:
        faiss.extract_index_ivf(theirs).nprobe = 20
    queries, given = rows[:100], rows[:count]
    inner = theirs
    if string.startswith("OPQ"):
        turn = theirs.chain.at(0)
        queries, given = turn.apply(queries), turn.apply(given)
    if string.startswith(("OPQ", "IDMap")):
        inner = faiss.downcast_index(theirs.index)
    stand_for = np.zeros((9000, given.shape[1]), np.float32)
    stand_for[ids] = coded_by(inner, given)
    exact_among(found, stand_for, queries, metric)
    expected = theirs.search(rows[:100], k)
    np.testing.assert_allclose(found[0], expected[0], rtol=0.1, atol=0.3)
    # The index that FAISS reads has knear's codes.
    ours.write_faiss(path)
    again = knear.Index.load(path)
    same(again.search(rows[:100], k, **asked), found)


def test_centring(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    for before, after in (
        ("", "Flat"),
        ("RR12", "IVF20,Flat"),
        ("", "IVF20,PQ4"),
        ("L2norm", "SQ8"),
    ):
        chain = [faiss.CenteringTransform(12)]
        if before == "RR12":
            chain.append(faiss.RandomRotationMatrix(12, 12))
        if before == "L2norm":
            chain.insert(0, faiss.NormalizationTransform(12))
        inner = made(after)
        theirs = faiss.IndexPreTransform(inner)
        for transform in reversed(chain):
            theirs.prepend_transform(transform)
        theirs.train(rows)
        theirs.add(rows)
        lists = 20 if "IVF" in after else 0
        asked = {"probes": 3} if lists else {}
        probing(theirs, lists)
        faiss.write_index(theirs, path)
        ours = knear.Index.load(path)
        near(ours.search(rows[:200], 5, **asked), theirs.search(rows[:200], 5))
        ours.save(tmp_path / "a.knear")
        again = knear.Index.load(tmp_path / "a.knear")
        same(again.search(rows[:200], 5, **asked), ours.search(rows[:200], 5, **asked))
        ours.write_faiss(path)
        theirs = probing(faiss.read_index(path), lists)
        near(ours.search(rows[:200], 5, **asked), theirs.search(rows[:200], 5))


@pytest.mark.parametrize(
    "inner", ["IVF20,Flat", "IVF20,SQ8", "SQ8", "IVF10,PQ6x4", "PCA8,IVF10,Flat", "PQ6x4,RFlat"]
)
@pytest.mark.parametrize("form", ["Flat", "PQ4", "SQfp16"])
def test_an_index_over_centroids(rows, inner, form, tmp_path):
    if inner.startswith("PCA") and form == "PQ4":
        pytest.skip("FAISS adds the distance of a centroid that is left after the PCA")
    path = str(tmp_path / "a.faiss")
    theirs = made(f"IVF200({inner}),{form}")
    quantizer = faiss.downcast_index(theirs.quantizer)
    if "IVF" in inner:
        by = faiss.extract_index_ivf(quantizer)
        by.nprobe = 4
        by.make_direct_map()  # without which it has no vectors
    elif "RFlat" in inner:
        quantizer.k_factor = 4
    theirs.train(rows)
    theirs.add(rows)
    theirs.nprobe = 7
    faiss.write_index(theirs, path)
    ours = knear.Index.load(path)
    assert (ours.lists, len(ours)) == (200, 3000)
    assert ours.factory.startswith("IVF200(")
    near(ours.search(rows[:200], 5, probes=7), theirs.search(rows[:200], 5))
    # All lists are all rows, whatever the quantiser finds.
    if form == "Flat":
        flat = faiss.IndexFlatL2(12)
        flat.add(rows)
        same(ours.search(rows[:50], 5, recall=1), flat.search(rows[:50], 5))
    ours.write_faiss(path)
    again = faiss.read_index(path)
    again.nprobe = 7
    near(ours.search(rows[:200], 5, probes=7), again.search(rows[:200], 5))


def test_an_index_over_centroids_that_refines_as_ours_do_not(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = made("IVF200(PQ6x4,RFlat),Flat")
    theirs.train(rows)
    theirs.add(rows)
    faiss.write_index(theirs, path)
    with pytest.raises(
        knear.InvalidArgument, match="measures 1 codes for each neighbour, .* reads k_factor 4"
    ):
        knear.Index.load(path)


def test_an_index_over_centroids_for_products(rows, tmp_path):
    path = str(tmp_path / "a.faiss")
    theirs = faiss.index_factory(12, "IVF200(IVF10,Flat),Flat", faiss.METRIC_INNER_PRODUCT)
    theirs.train(rows)
    theirs.add(rows)
    faiss.write_index(theirs, path)
    with pytest.raises(
        knear.InvalidArgument, match="finds the centroids of its lists by inner prod"
    ):
        knear.Index.load(path)
    ours = knear.Index("IVF200(IVF10,Flat),Flat", dim=12, metric="ip")
    ours.train(rows)
    with pytest.raises(knear.InvalidArgument, match="by an index over lifted centroids"):
        ours.write_faiss(path)


@pytest.mark.parametrize("inner", ["SQ8", "PCA8,Flat", "IVF10,PQ6x4", "SQfp16"])
def test_codes_beside_centroids_that_faiss_would_take_for_others(rows, inner, tmp_path):
    path = tmp_path / "a.faiss"
    index = knear.Index(f"IVF200({inner}),PQ4", dim=12)
    index.train(rows)
    index.add(rows)
    with pytest.raises(knear.InvalidArgument, match="does not hold them as they are"):
        index.write_faiss(path)
    assert not path.exists()
    # Where they are held, or vectors are kept whole, answers are the same.
    for string in (f"IVF200({inner}),Flat", f"IVF200({inner},RFlat),PQ4", "IVF200(IVF10,Flat),PQ4"):
        if ("PCA" in inner or "fp16" in inner) and "RFlat" in string:
            continue
        index = knear.Index(string, dim=12)
        index.train(rows)
        index.add(rows)
        index.write_faiss(path)
        theirs = faiss.read_index(str(path))
        theirs.nprobe = 200
        again = knear.Index.load(path)
        expected = index.search(rows[:200], 5, probes=200)
        same(again.search(rows[:200], 5, probes=200), expected)
        if "IVF10" not in string:  # whose search by FAISS may find fewer lists
            near(expected, theirs.search(rows[:200], 5))


@pytest.mark.parametrize("string", CODED)
def test_codes_of_our_own(rows, string, tmp_path):
    path = str(tmp_path / "a.faiss")
    ours = knear.Index(string, dim=12)
    if ours.is_trained is False:
        ours.train(rows)
    ours.add(rows)
    ours.write_faiss(path)
    theirs = faiss.read_index(path)
    if string in TYPES:
        assert type(faiss.downcast_index(theirs)).__name__ == TYPES[string]
    lists = ours.lists
    probing(theirs, lists)
    asked = {"probes": 3} if lists else {}
    asked |= {"refine_factor": 40} if "Re" in string or "RFlat" in string else {}
    near(ours.search(rows[:200], 5, **asked), theirs.search(rows[:200], 5), "x4" in string)
    again = knear.Index.load(path)
    found, expected = again.search(rows[:200], 5, **asked), ours.search(rows[:200], 5, **asked)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)


def test_pca_by_products_means_what_its_file_says(tmp_path):
    """FAISS subtracts the mean from queries too; knear did, and leaves it in now. Files answer as
    whoever trained them did."""
    random = np.random.default_rng(1)
    x = (random.standard_normal((3000, 16)) + 1).astype(np.float32)
    queries = (random.standard_normal((50, 16)) + 1).astype(np.float32)
    path = tmp_path / "index"
    theirs = faiss.index_factory(16, "PCA16,Flat", faiss.METRIC_INNER_PRODUCT)
    theirs.train(x)
    theirs.add(x)
    faiss.write_index(theirs, str(path))
    index = knear.Index.load(path)
    with_shift = index.search(queries, 10)
    distances, ids = theirs.search(queries, 10)
    assert np.array_equal(with_shift.ids, ids)
    np.testing.assert_allclose(with_shift.distances, distances, rtol=1e-4, atol=1e-4)
    index.save(path)  # as files of older versions have it
    assert np.array_equal(knear.Index.load(path).search(queries, 10).ids, ids)
    exact = knear.knn(queries, x, 10, "ip")
    own = knear.Index("PCA16,Flat", dim=16, metric="ip")
    own.train(x)
    own.add(x)
    assert (own.search(queries, 10).ids == exact.ids).mean() > 0.99
    assert (with_shift.ids == exact.ids).mean() < 0.9
    own.write_faiss(path)
    for read in (
        knear.Index.load(path).search(queries, 10).ids,
        faiss.read_index(str(path)).search(queries, 10)[1],
    ):
        assert (read == exact.ids).mean() > 0.99
