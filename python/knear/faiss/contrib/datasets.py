"""SyntheticDataset: vectors that a few hidden numbers make, FAISS's bit for bit. Data sets in files
are not there: their names say how their files are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import knear.faiss as faiss
from knear.faiss.missing import NotHere, named_alone

_FILES = (
    "data sets in files are not there; knear.read_vectors('sift_base.fvecs') reads .fvecs, .bvecs, "
    ".ivecs, .fbin and .npy"
)
_CLASSES = (
    "DatasetSIFT1M DatasetGIST1M DatasetBigANN DatasetDeep1B DatasetGlove DatasetMusic100 "
    "DatasetDINO10B"
)
_FUNCTIONS = "dataset_from_name set_dataset_basedir sanitize"


def __getattr__(name: str) -> Any:
    if name in f"{_CLASSES} {_FUNCTIONS}".split():
        return named_alone(name, _FILES)
    if name == "dataset_basedir":
        raise NotHere(f"knear.faiss.contrib.datasets.{name}: {_FILES}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Dataset:
    """nt vectors to train on, nb to search and nq queries, of d columns; metric "L2" or "IP"."""

    d = nt = nb = nq = -1
    metric = "L2"

    def get_queries(self) -> Any:
        raise NotImplementedError("a data set has queries")

    def get_train(self, maxtrain: int | None = None) -> Any:
        raise NotImplementedError("the data set has no vectors to train on")

    def get_database(self) -> Any:
        raise NotImplementedError("a data set has vectors")

    def get_groundtruth(self, k: int | None = None) -> Any:
        raise NotImplementedError("the nearest neighbours are not known")

    def database_iterator(self, bs: int = 128, split: tuple[int, int] = (1, 0)) -> Iterator[Any]:
        """Blocks of bs vectors; of part split[1] of split[0] parts."""
        parts, part = split
        begin, end = self.nb * part // parts, self.nb * (part + 1) // parts
        base = self.get_database()
        for first in range(begin, end, bs):
            yield base[first : min(first + bs, end)]

    def check_sizes(self) -> None:
        """AssertionError unless all have the sizes that they should have."""
        assert self.get_queries().shape == (self.nq, self.d)
        if self.nt > 0:
            assert self.get_train(maxtrain=123).shape == (min(123, self.nt), self.d)
        assert self.get_database().shape == (self.nb, self.d)
        assert self.get_groundtruth(k=13).shape == (self.nq, 13)

    def __str__(self) -> str:
        return (
            f"{type(self).__name__} d={self.d} {self.metric} nt={self.nt} nb={self.nb} nq={self.nq}"
        )


class SyntheticDataset(Dataset):
    """Sines of products of 10 normal numbers."""

    def __init__(
        self, d: int, nt: int, nb: int, nq: int, metric: str = "L2", seed: int = 1338
    ) -> None:
        self.d, self.nt, self.nb, self.nq, self.metric = d, nt, nb, nq, metric
        random = np.random.RandomState(seed)
        x = random.normal(size=(nt + nb + nq, 10))
        x = x @ random.rand(10, d)
        x = np.sin(x * (random.rand(d) * 4 + 0.1)).astype("float32")
        self.xt, self.xb, self.xq = x[:nt], x[nt : nt + nb], x[nt + nb :]

    def get_train(self, maxtrain: int | None = None) -> Any:
        return self.xt[:maxtrain]

    def get_database(self) -> Any:
        return self.xb

    def get_queries(self) -> Any:
        return self.xq

    def get_groundtruth(self, k: int | None = 100) -> Any:
        metric = faiss.METRIC_L2 if self.metric == "L2" else faiss.METRIC_INNER_PRODUCT
        return faiss.knn(self.xq, self.xb, 100 if k is None else k, metric)[1]
