"""knear.faiss: fields and arguments of the wrong type are refused where they are given, as by the
types of FAISS's C++; and files that are none."""

import numpy as np
import pytest
from faiss_pair import needs_faiss, ours, refused, theirs


@pytest.fixture
def lists(rows, faiss):
    index = faiss.index_factory(12, "IVF20,Flat")
    index.train(rows)
    index.add(rows)
    return index


@pytest.mark.parametrize("wrong", [4.0, "4", None, np.float32(4), [4]])
def test_fields_of_whole_numbers(lists, faiss, wrong):
    for owner, name in ((lists, "nprobe"), (lists, "max_codes"), (lists, "parallel_mode"),
                        (lists.cp, "niter"), (lists.cp, "seed"), (lists, "metric_type"),
                        (faiss.SearchParametersIVF(), "nprobe")):  # fmt: skip
        with pytest.raises(TypeError):
            setattr(owner, name, wrong)
    for parameter in ("nprobe", "max_codes"):
        with pytest.raises(TypeError):
            faiss.SearchParametersIVF(**{parameter: wrong})
    with pytest.raises(TypeError):
        faiss.Kmeans(12, 4, niter=wrong)
    lists.nprobe = 7
    assert lists.nprobe == 7


@pytest.mark.parametrize("wrong", ["yes", 2, 1.5, None])
def test_fields_of_truth(lists, faiss, wrong):
    for name in ("spherical", "verbose", "frozen_centroids"):
        with pytest.raises(TypeError):
            faiss.Kmeans(12, 4, **{name: wrong})
    with pytest.raises(TypeError):
        lists.verbose = wrong


def test_fields_of_numbers(rows, faiss):
    index = faiss.IndexRefineFlat(faiss.IndexFlatL2(12))
    index.k_factor = 3
    assert index.k_factor == 3.0 and isinstance(index.k_factor, float)
    for owner, name in ((index, "k_factor"), (faiss.PCAMatrix(12, 3), "eigen_power")):
        with pytest.raises(TypeError):
            setattr(owner, name, "3")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy(rows, kind):
    """FAISS takes none of these for a field, and some for k."""
    index = ours.IndexIVFFlat(ours.IndexFlatL2(kind(12)), kind(12), kind(20))
    index.train(rows)
    index.add(rows)
    index.nprobe = kind(5)
    assert type(index.nprobe) is int
    parameters = ours.SearchParametersIVF(nprobe=kind(5))
    for found in (index.search(rows[:3], kind(2)), index.search(rows[:3], 2, params=parameters)):
        assert found[1][:, 0].tolist() == [0, 1, 2]


def test_how_many_neighbors(rows, lists, faiss):
    flat = faiss.IndexFlatL2(12)
    flat.add(rows)
    for wrong in (3.7, 3.0, "3", True, None, np.float64(3)):
        for index in (flat, lists):
            with pytest.raises(TypeError):
                index.search(rows[:2], wrong)
            if wrong is not True:
                with pytest.raises(TypeError):
                    index.search_and_reconstruct(rows[:2], wrong)
    with pytest.raises(TypeError):
        flat.reconstruct(1.5)
    with pytest.raises(TypeError):
        flat.range_search(rows[:2], None)


def test_sizes_of_what_is_made(faiss):
    flat = faiss.IndexFlatL2(12)
    for make in (
        lambda: faiss.IndexFlatL2("8"),
        lambda: faiss.IndexFlatL2(2.5),
        lambda: faiss.IndexFlat(8.0),
        lambda: faiss.IndexIVFFlat(flat, 12, 2.5),
        lambda: faiss.IndexPQ(12, 4, 8.0),
        lambda: faiss.IndexPQ(12, "4", 8),
        lambda: faiss.IndexScalarQuantizer(12, 2.5),
        lambda: faiss.PCAMatrix(12, 2.5),
        lambda: faiss.OPQMatrix(12, 2.5),
        lambda: faiss.index_factory(12.5, "Flat"),
        lambda: faiss.index_factory(12, 12),
    ):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError, match="k must be a whole number, but is 2.5"):
        ours.Kmeans(12, 2.5)


def test_a_pca_of_fewer_vectors_than_components(rows, faiss):
    for make in (
        lambda: faiss.PCAMatrix(12, 10),
        lambda: faiss.PCAMatrix(12, 10, 0, True),
        lambda: faiss.index_factory(12, "PCA10,Flat"),
    ):
        with refused(match="PCA matrix cannot output 10 dimensions from 12"):
            make().train(rows[:9])
        made = make()
        made.train(rows[:10])
        assert made.is_trained


def test_direct_codes_hold_the_numbers_themselves(rows):
    """They are from 0 to 255. FAISS codes residuals so too, and cuts off what is negative."""
    direct = ours.ScalarQuantizer.QT_8bit_direct
    x = np.abs(rows * 60).round().clip(0, 255)
    for index in (
        ours.index_factory(12, "IVF20,SQ8_direct"),
        ours.IndexIVFScalarQuantizer(ours.IndexFlatL2(12), 12, 20, direct),
        ours.IndexIVFScalarQuantizer(ours.IndexFlatL2(12), 12, 20, direct, ours.METRIC_L2, False),
    ):
        assert not index.by_residual
        index.train(x)
        index.add(x)
        index.nprobe = 20
        assert (index.search(x[:50], 1)[0] == 0).all()
    index.by_residual = True
    with refused(match="^by_residual is True, but QT_8bit_direct has no codes of negative"):
        index.search(x[:5], 1)


@pytest.mark.parametrize("data", [b"", b"abc", b"hello, this is text", bytes(99)])
def test_what_is_no_index(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    for read in (
        lambda: ours.deserialize_index(data),
        lambda: ours.deserialize_index(bytearray(data)),
        lambda: ours.deserialize_index(np.frombuffer(data, np.uint8)),
        lambda: ours.read_index(str(path)),
    ):
        with refused(match=r"^[^\n]+\Z"):  # one line
            read()
    with refused(match=f"{path}"):
        ours.read_index(path)
    if theirs is not None:
        with refused():
            theirs.read_index(str(path))


def test_bytes_of_an_index(rows):
    index = ours.IndexFlatL2(12)
    index.add(rows)
    data = ours.serialize_index(index)
    for given in (data.tobytes(), bytearray(data), memoryview(data), data):
        assert ours.deserialize_index(given).ntotal == 3000
    for wrong in ("abc", [1, 2, 3], None):
        with pytest.raises(TypeError, match="must be an array of uint8 or bytes"):
            ours.deserialize_index(wrong)
    with pytest.raises(AssertionError):
        ours.deserialize_index(data.astype(np.float64))
    with pytest.raises(TypeError):
        ours.read_index(5)


@needs_faiss
def test_letters_of_an_index_that_is_not_there(rows):
    graph = theirs.IndexHNSWFlat(12, 8)
    graph.add(rows[:50])
    with pytest.raises(NotImplementedError, match=r"has an IndexHNSWFlat \(IHN"):
        ours.deserialize_index(theirs.serialize_index(graph))
