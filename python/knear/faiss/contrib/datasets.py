"""SyntheticDataset: vectors that a few hidden numbers make, FAISS's bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import METRIC_INNER_PRODUCT, METRIC_L2
from ..functions import knn


class SyntheticDataset:
    """nt vectors to train on, nb to search and nq queries, of d columns."""

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

    def get_groundtruth(self, k: int = 100) -> Any:
        metric = METRIC_L2 if self.metric == "L2" else METRIC_INNER_PRODUCT
        return knn(self.xq, self.xb, k, metric)[1]
