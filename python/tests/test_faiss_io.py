"""knear.faiss: what it writes and reads, and what it refuses to read.

test_faiss_files.py has the same files as knear.Index reads and writes them.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from faiss_pair import across, filled, needs_faiss, ours, refused, same, theirs

import knear


@pytest.mark.parametrize("string", ["IVF20,Flat", "PCA8,IVF20,PQ4np", "SQ8", "IDMap,IVF20,SQ4"])
def test_untrained_in_files(string):
    for one, other in ((ours, theirs or ours), (theirs or ours, ours)):
        data = one.serialize_index(one.index_factory(12, string))
        assert not other.deserialize_index(data).is_trained


@needs_faiss
def test_vectors_and_transforms_in_files(rows, tmp_path):
    path = str(tmp_path / "a")
    for make in (
        lambda module: module.PCAMatrix(12, 5, -0.5, True),
        lambda module: module.OPQMatrix(12, 3, 6),
        lambda module: module.RandomRotationMatrix(12, 20),
        lambda module: module.CenteringTransform(12),
        lambda module: module.NormalizationTransform(12),
        lambda module: module.RemapDimensionsTransform(12, 15, True),
    ):
        for one, other in ((ours, theirs), (theirs, ours)):
            vt = make(one)
            if hasattr(vt, "niter"):
                vt.niter = 3
            vt.train(rows)
            one.write_VectorTransform(vt, path)
            read = other.read_VectorTransform(path)
            np.testing.assert_allclose(read.apply(rows), vt.apply(rows), atol=1e-4)
    pq = ours.ProductQuantizer(12, 3, 6)
    pq.train(rows)
    ours.write_ProductQuantizer(pq, path)
    read = theirs.read_ProductQuantizer(path)
    np.testing.assert_array_equal(
        read.decode(pq.compute_codes(rows)), pq.decode(pq.compute_codes(rows))
    )


def test_writers(rows, faiss):
    index = faiss.index_factory(12, "IVF4,Flat")
    index.train(rows)
    index.add(rows)
    writer = faiss.VectorIOWriter()
    faiss.write_index(index, writer)
    data = faiss.vector_to_array(writer.data)
    np.testing.assert_array_equal(data, faiss.serialize_index(index))
    reader = faiss.VectorIOReader()
    faiss.copy_array_to_vector(data, reader.data)
    same(faiss.read_index(reader).search(rows[:9], 3), index.search(rows[:9], 3))
    parts = []
    faiss.write_index(index, faiss.PyCallbackIOWriter(parts.append))
    assert b"".join(parts) == data.tobytes()
    for length in (0, 3, 4, 40, 300, len(data) - 1):
        with refused():
            faiss.deserialize_index(data[:length].copy())


def test_readers_take_what_an_index_needs(rows, faiss):
    """Two indexes after another in one pipe, a few bytes at a time."""
    two = [filled(faiss, string, 1, rows) for string in ("Flat", "IVF20,SQ8")]
    data = b"".join(faiss.serialize_index(index).tobytes() for index in two)
    at = 0

    def take(size):
        nonlocal at
        at += size
        return data[at - size : at]

    reader = faiss.PyCallbackIOReader(take, 999)
    for index in two:
        same(faiss.read_index(reader).search(rows[:9], 3), index.search(rows[:9], 3))
    written = []
    faiss.write_index(two[0], faiss.BufferedIOWriter(faiss.PyCallbackIOWriter(written.append), 50))
    at, data = 0, b"".join(map(bytes, written))
    buffered = faiss.BufferedIOReader(faiss.PyCallbackIOReader(take, 70), 60)
    assert faiss.read_index(buffered).ntotal == 3000


def test_knear_reads_what_is_written(rows, tmp_path):
    index = filled(ours, "IVF20,PQ4np", 1, rows)
    ours.write_index(index, tmp_path / "a.faiss")
    read = knear.Index.load(tmp_path / "a.faiss")
    same(read.search(rows[:20], 5, probes=5), index.search(rows[:20], 5))


def test_cut_files_are_named(rows, tmp_path, faiss):
    path = str(tmp_path / "half.faiss")
    data = faiss.serialize_index(filled(faiss, "Flat", 1, rows)).tobytes()
    Path(path).write_bytes(data[: len(data) // 2])
    with refused(match="half.faiss"):
        faiss.read_index(path)


@pytest.mark.parametrize(
    "string", ["PCA8,IVF20,PQ4np", "IVF60(IVF10,Flat),Flat", "IDMap,IVF20,SQ8", "SQ4,RFlat"]
)
def test_damaged_files_are_refused(rows, string):
    """Whatever is in it, it is read, and can be searched, or refused."""
    whole = ours.serialize_index(filled(ours, string, 1, rows))
    rng = np.random.default_rng(1)
    for _ in range(200):
        damaged = whole.copy()
        damaged[rng.integers(0, 1500, 3)] = rng.integers(0, 256, 3)
        with contextlib.suppress(RuntimeError, AssertionError, MemoryError):
            index = ours.deserialize_index(damaged)
            index.search(rows[:3], 2)
            index.range_search(rows[:3], 1.0)


def test_what_does_not_fit_in_files_is_refused(rows):
    """Numbers that say the same in two places."""
    with refused(match="dim"):
        ours.IndexFlatL2(1 << 17)
    for string, old, new, message in (
        ("SQ8", (12).to_bytes(8, "little"), (13).to_bytes(8, "little"), "13 columns"),
        ("PQ4np", (12).to_bytes(8, "little"), (16).to_bytes(8, "little"), "4 parts of 16"),
        ("IVF20,Flat", b"full" + b"\x14", b"full" + b"\x13", "numbers are given"),
        ("IVF20,Flat", (3000).to_bytes(8, "little"), (3001).to_bytes(8, "little"), "direct map"),
    ):
        index = ours.index_factory(12, string)
        index.train(rows)
        index.add(rows)
        if "IVF" in string:
            index.make_direct_map()
        data = ours.serialize_index(index).tobytes()
        assert old in data
        with refused(match=message):
            ours.deserialize_index(np.frombuffer(data.replace(old, new, 1), np.uint8))


@needs_faiss
@pytest.mark.parametrize("string", ["IVF20,Flat", "PCA8,IVF20,Flat"])
def test_maps_of_other_ids_in_files(rows, string):
    """FAISS leaves the ids of lists as they are when a map around these removes some."""
    index = theirs.index_factory(12, f"IDMap,{string}")
    index.train(rows)
    index.add_with_ids(rows, np.arange(3000))
    index.remove_ids(np.arange(2990, 3000))
    assert across(ours, index).ntotal == 2990
    index.remove_ids(np.arange(10))
    with refused(match="ids from 10 to 2989, where 0 to 2979 are due"):
        across(ours, index)


@pytest.mark.parametrize("string", ["IVF5,Flat", "IDMap,SQ8", "PCA8,IVF5,Flat", "Flat", "SQ8"])
def test_quantizers_of_other_ids_in_files(rows, string):
    index = ours.index_factory(12, f"IVF30({string}),Flat")
    index.nlist -= 1
    index.is_trained = True
    index.quantizer.train(rows)
    if string.startswith("IDMap"):
        index.quantizer.add_with_ids(rows[:5], [0, 1, 2, 3, 29])
    else:
        index.quantizer.add(rows[:30])
    with refused(match="quantizer of lists has ids from 0 to 29"):
        ours.deserialize_index(ours.serialize_index(index))


@needs_faiss
def test_infinite_codes_of_files(rows):
    """The error of a search names the row, not a file that is made for it."""
    index = theirs.index_factory(12, "SQfp16")
    bad = rows[:9].copy()
    bad[3, 2] = 70000
    index.add(bad)
    with refused(match="^vectors must be finite, but row 3 column 2"):
        across(ours, index).search(rows[:2], 1)
