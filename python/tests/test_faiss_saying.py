"""knear.faiss: what verbose prints, and the warning of too few points."""

import re
import warnings

import numpy as np
import pytest
from faiss_pair import ours


def printed(capfd):
    """The lines, of C++ too, and without the returns that FAISS draws over a line with."""
    return [line for line in re.split(r"[\r\n]+", capfd.readouterr().out) if line.strip()]


def test_verbose_k_means(rows, capfd):
    km = ours.Kmeans(12, 8, niter=3, nredo=2, verbose=True)
    km.train(rows, init_centroids=rows[:2])
    lines = printed(capfd)
    assert lines[0] == "Sampling a subset of 2048 / 3000 for training"
    assert lines[1] == "Clustering 2048 points in 12D to 8 clusters, redo 2 times, 3 iterations"
    assert lines[2] == "  Using 2 centroids provided as input (not frozen)"
    steps = [line for line in lines if "objective=" in line]
    told = [float(re.search(r"objective=(\S+) nsplit=\d+$", line)[1]) for line in steps]
    assert len(told) == 6 and "Outer iteration 1 / 2" in lines
    assert any(np.allclose(told[i : i + 3], km.obj[-3:], rtol=1e-4) for i in (0, 3))
    ours.Kmeans(12, 8).train(rows)
    assert printed(capfd) == []


def test_the_same_is_said_of_k_means(rows, capfd, faiss):
    km = faiss.Kmeans(12, 8, niter=3, verbose=True)
    km.train(rows)
    lines = printed(capfd)
    assert "Sampling a subset of 2048 / 3000 for training" in lines
    assert "Clustering 2048 points in 12D to 8 clusters, redo 1 times, 3 iterations" in lines
    assert any(line.startswith("  Iteration 0 (") and "objective=" in line for line in lines)


@pytest.mark.parametrize(
    "string, of_training, of_adding",
    [("IVF20,Flat", "level-1 quantizer on 3000 vectors in 12D", "added 3000 / 3000 vectors"),
     ("PCA8,IVF20,Flat", "raining chain component 0/1", "")],
)  # fmt: skip
def test_verbose_indexes(rows, capfd, faiss, string, of_training, of_adding):
    index = faiss.index_factory(12, string)
    index.verbose = True
    index.train(rows)
    assert any(of_training in line for line in printed(capfd))
    index.add(rows)
    lines = printed(capfd)
    assert any(of_adding in line for line in lines) if of_adding else lines == []
    faiss.ParameterSpace().set_index_parameter(index, "verbose", 0)
    index.search(rows[:3], 2)
    index.add(rows)
    assert not [line for line in printed(capfd) if "set_index" not in line]


def test_few_points_are_warned_of(rows):
    with pytest.warns(UserWarning) as warned:
        ours.Kmeans(12, 100).train(rows)
    (one,) = warned
    assert str(one.message) == (
        "clustering 3000 points to 100 centroids: please provide at least 3900 training points"
    )
    assert one.filename == __file__
    index = ours.index_factory(12, "IVF20,PQ4np")
    with pytest.warns(UserWarning, match="to 256 centroids: please provide at least 9984"):
        index.train(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.Kmeans(12, 100, min_points_per_centroid=5).train(rows)
        ours.Kmeans(12, 70).train(rows)
        lists = ours.index_factory(12, "IVF100,Flat")
        lists.cp.min_points_per_centroid = 1
        lists.train(rows)


def test_few_points_are_told_by_both(rows, capfd, faiss):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        faiss.Kmeans(12, 100).train(rows)
    told = capfd.readouterr().err + " ".join(str(each.message) for each in warned)
    assert "to 100 centroids: please provide at least 3900 training points" in told
