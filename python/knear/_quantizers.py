"""Vectors with fewer numbers or fewer bytes: PCA, OPQ, ProductQuantizer, ScalarQuantizer."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core, _results
from ._progress import Progress, reporting
from ._sealed import Sealed
from .errors import InvalidArgument


class _Transform(Sealed):
    """A map of vectors that is learned from some: what PCA and OPQ have in common."""

    _made: _core.Transform | None = None
    _threads: int = 0

    def _trained(self) -> _core.Transform:
        if self._made is None:
            raise InvalidArgument("the transform has learned nothing yet: call train() first")
        return self._made

    @property
    def dim_in(self) -> int:
        """Columns of what is transformed. Raises InvalidArgument before train()."""
        return self._trained().dim_in

    @property
    def dim_out(self) -> int:
        """Columns of what comes out. Raises InvalidArgument before train()."""
        return self._trained().dim_out

    @property
    def matrix(self) -> NDArray[np.float32]:
        """A of y = A x + b, [dim_out x dim_in], a copy."""
        return self._affine()[0]

    @property
    def offset(self) -> NDArray[np.float32]:
        """b of y = A x + b, [dim_out], a copy."""
        return self._affine()[1]

    def _affine(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        trained = self._trained()
        matrix, offset = np.eye(trained.dim_in), np.zeros(trained.dim_in)
        for kind, *what in trained.steps():
            if kind == "shift":
                offset = offset + what[0]
            else:
                matrix, offset = what[0] @ matrix, what[0] @ offset
                if what[1].size:
                    offset = offset + what[1]
        return matrix.astype(np.float32), offset.astype(np.float32)

    def apply(
        self,
        x: ArrayLike,
        *,
        out: NDArray[np.float32] | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float32]:
        """[n x dim_out] of `x` [n x dim_in]: the same bits on every machine. `out`: a NumPy array
        that takes them; `progress`: as of KMeans.train.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pca = knear.PCA(8).train(x)
        >>> y = pca.apply(x)
        >>> np.allclose(y, x @ pca.matrix.T + pca.offset, atol=1e-4)
        True

        Raises ShapeMismatch; InvalidArgument before train() and for a NaN or infinity.
        """
        trained = self._trained()
        rows, kind = _arrays.matrix("x", x)
        _results.check_array(out, (len(rows), trained.dim_out), np.float32)
        return _results.into(out, reporting(progress, trained.apply, rows, kind, self._threads))

    def inverse(
        self,
        y: ArrayLike,
        *,
        out: NDArray[np.float32] | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float32]:
        """[n x dim_in] of `y` [n x dim_out]: of all vectors that become `y`, the one nearest to
        the mean of what train() saw (PCA) or to 0 (OPQ). Other arguments and errors are those of
        apply().

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pca = knear.PCA(16).train(x)                     # all columns: nothing is lost
        >>> np.allclose(pca.inverse(pca.apply(x)), x, atol=1e-4)
        True
        """
        trained = self._trained()
        rows, kind = _arrays.matrix("y", y)
        _results.check_array(out, (len(rows), trained.dim_in), np.float32)
        return _results.into(out, reporting(progress, trained.inverse, rows, kind, self._threads))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._made is not None:
            state["_made"] = self._made.steps()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps = state.pop("_made", None)
        self.__dict__.update(state)
        if steps is not None:
            make: dict[str, Any] = {
                "linear": _core.Transform.linear,
                "shift": _core.Transform.shift,
            }
            self._made = _core.Transform.chain([make[kind](*what) for kind, *what in steps])


class PCA(_Transform):
    """The directions in which vectors differ most: fewer columns that keep most of the distances.

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
    >>> pca = knear.PCA(8).train(x)
    >>> y = pca.apply(x)
    >>> y.shape, pca.inverse(y).shape
    ((500, 8), (500, 16))

    The mean is subtracted, which keeps distances but not products and cosines: for these take
    knear.Index("PCA8,Flat", metric="ip" or "cosine"), which leaves it in.

    components: columns that are left, at most dim.
    whiten: divide each component by its standard deviation; components in which the rows do not
        vary become zeros.
    rotate: mix the components by a random rotation, so that all have about the same variance.
    balance_over: order the components so that each of so many equal parts has about the same
        product of variances, as product quantizers want it; 1: the largest variance first.
    most_rows: train on a random sample of so many rows; 0: on all.
    seed: of the sample and the rotation: the same result for the same seed on every machine.
    threads: 0 for all that the process may use.
    """

    components: int

    def __init__(
        self,
        components: int,
        *,
        whiten: bool = False,
        rotate: bool = False,
        balance_over: int = 1,
        most_rows: int = 131072,
        seed: int = 1,
        threads: int = 0,
    ) -> None:
        self.components = _arrays.integer("components", components)
        self._options = (
            bool(whiten),
            bool(rotate),
            _arrays.integer("balance_over", balance_over),
            _arrays.integer("most_rows", most_rows),
            _arrays.integer("seed", seed) % 2**64,
        )
        self._threads = _arrays.integer("threads", threads)

    def train(self, x: ArrayLike, *, progress: Progress = None) -> "PCA":
        """Finds the components of `x` [n x dim], n >= 2, and returns the object itself.
        `progress`: as of KMeans.train.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pca = knear.PCA(8).train(x)
        >>> pca.dim_in, pca.dim_out, pca.matrix.shape
        (16, 8, (8, 16))

        Raises InvalidArgument for a NaN or infinity, with its row, and for whitening of rows that
        are all the same. Then all is as before.
        """
        rows = _arrays.matrix("x", x)
        self._made = reporting(
            progress,
            _core.Transform.pca,
            *rows,
            self.components,
            *self._options,
            self._threads,
        )
        return self

    def __repr__(self) -> str:
        state = "not trained" if self._made is None else f"dim={self.dim_in}"
        return f"<knear.PCA to {self.components} columns, {state}>"


class OPQ(_Transform):
    """The rotation after which a product quantizer loses least.

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((1000, 16), dtype=np.float32)
    >>> opq = knear.OPQ(4, iterations=5).train(x)
    >>> pq = knear.ProductQuantizer(4).train(opq.apply(x))
    >>> opq.apply(x).shape
    (1000, 16)

    sub_quantizers: of the quantizer that follows; must divide the columns after the rotation.
    dim_out: columns after the rotation; None: as many as before.
    bits: of each sub-quantizer, 8 or 4.
    iterations: at most so many.
    most_rows: train on a random sample of so many rows; 0: on all.
    seed: the same rotation for the same seed, data and options on every machine.
    threads: 0 for all that the process may use.
    """

    sub_quantizers: int

    def __init__(
        self,
        sub_quantizers: int,
        dim_out: int | None = None,
        *,
        bits: int = 8,
        iterations: int = 50,
        most_rows: int = 65536,
        seed: int = 1,
        threads: int = 0,
    ) -> None:
        self.sub_quantizers = _arrays.integer("sub_quantizers", sub_quantizers)
        self._options = (
            _arrays.integer("bits", bits),
            0 if dim_out is None else _arrays.integer("dim_out", dim_out),
            _arrays.integer("iterations", iterations),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.integer("most_rows", most_rows),
        )
        self._threads = _arrays.integer("threads", threads)

    def train(self, x: ArrayLike, *, progress: Progress = None) -> "OPQ":
        """Finds the rotation for `x` [n x dim], n >= 2^bits, and returns the object itself.
        `progress`: as of KMeans.train.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> opq = knear.OPQ(4, bits=4, iterations=3).train(x)
        >>> opq.dim_in, opq.dim_out
        (16, 16)
        >>> np.allclose(opq.matrix @ opq.matrix.T, np.eye(16), atol=1e-4)
        True

        Raises InvalidArgument for too few rows, where sub_quantizers does not divide the columns,
        and for a NaN or infinity, with its row. Then all is as before.
        """
        rows = _arrays.matrix("x", x)
        self._made = reporting(
            progress,
            _core.Transform.opq,
            *rows,
            self.sub_quantizers,
            *self._options,
            self._threads,
        )
        return self

    def __repr__(self) -> str:
        state = "not trained" if self._made is None else f"dim={self.dim_in}"
        return f"<knear.OPQ for {self.sub_quantizers} sub-quantizers, {state}>"


class ProductQuantizer(Sealed):
    """Vectors as a few bytes: each part of a vector by the number of its nearest centroid.

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((1000, 32), dtype=np.float32)
    >>> pq = knear.ProductQuantizer(8).train(x)          # 8 sub-quantizers of 8 bits, n >= 256
    >>> codes = pq.encode(x)                             # [n x 8] uint8
    >>> rough = pq.decode(codes)                         # [n x dim] float32, near x
    >>> distances = pq.distances(x[:2], codes)           # [q x n] float32
    >>> codes.shape, rough.shape, distances.shape
    ((1000, 8), (1000, 32), (2, 1000))

    sub_quantizers: into so many equal parts vectors are cut; must divide dim.
    bits: 8, or 4: then two parts share a byte, the first one in its lower half.
    iterations: of k-means, at most.
    seed: the same centroids for the same seed, data and options, with any number of threads on any
        machine.
    most_rows: train on a random sample of so many rows; 0: on all.
    threads: 0 for all that the process may use.

    Codes are those of float64 distances, ties to the smaller number.
    """

    sub_quantizers: int
    bits: int

    def __init__(
        self,
        sub_quantizers: int,
        bits: int = 8,
        *,
        iterations: int = 25,
        seed: int = 1,
        most_rows: int = 65536,
        threads: int = 0,
    ) -> None:
        self.sub_quantizers = _arrays.positive("sub_quantizers", sub_quantizers)
        self.bits = _arrays.integer("bits", bits)
        if self.bits not in (4, 8):
            raise InvalidArgument(f"bits must be 4 or 8, but is {bits}")
        self._options = (
            _arrays.integer("iterations", iterations),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.integer("most_rows", most_rows),
        )
        self._threads = _arrays.integer("threads", threads)
        self._made: _core.ProductQuantizer | None = None

    def train(self, x: ArrayLike, *, progress: Progress = None) -> "ProductQuantizer":
        """Finds the centroids by `x` [n x dim] and returns the object itself. `progress`: as of
        KMeans.train.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pq = knear.ProductQuantizer(4, bits=4).train(x)
        >>> pq.centroids.shape, pq.code_size
        ((4, 16, 4), 2)

        Raises InvalidArgument for fewer rows than 2^bits, where sub_quantizers does not divide dim,
        and for a NaN or infinity, with its row. Then the centroids are those of before.
        """
        rows = _arrays.matrix("x", x)
        self._made = reporting(
            progress,
            _core.ProductQuantizer.train,
            *rows,
            self.sub_quantizers,
            self.bits,
            *self._options,
            self._threads,
        )
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_made"] = None if self._made is None else self._made.centroids
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        centroids = state.pop("_made")
        self.__dict__.update(state)
        self._made = None
        if centroids is not None:
            self._made = _core.ProductQuantizer.from_centroids(
                centroids, self.sub_quantizers, self.bits
            )

    def _trained(self) -> _core.ProductQuantizer:
        if self._made is None:
            raise InvalidArgument("the quantizer has no centroids yet: call train() first")
        return self._made

    @property
    def centroids(self) -> NDArray[np.float32]:
        """The centroids [sub_quantizers x 2^bits x dim / sub_quantizers], a copy."""
        return self._trained().centroids.reshape(self.sub_quantizers, 2**self.bits, -1)

    @property
    def code_size(self) -> int:
        """Bytes of a code."""
        return self._trained().code_size

    def encode(
        self,
        x: ArrayLike,
        *,
        out: NDArray[np.uint8] | None = None,
        progress: Progress = None,
    ) -> NDArray[np.uint8]:
        """The codes [n x code_size] of `x` [n x dim]. `out`: a NumPy array that takes them;
        `progress`: as of KMeans.train.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pq = knear.ProductQuantizer(4).train(x)
        >>> codes = np.empty((500, pq.code_size), np.uint8)
        >>> pq.encode(x, out=codes) is codes
        True

        Raises ShapeMismatch; InvalidArgument before train() and for a NaN or infinity, with its
        row.
        """
        trained = self._trained()
        rows, kind = _arrays.matrix("x", x)
        _results.check_array(out, (len(rows), trained.code_size), np.uint8)
        return _results.into(out, reporting(progress, trained.encode, rows, kind, self._threads))

    def decode(
        self, codes: ArrayLike, *, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The vectors [n x dim] that `codes` [n x code_size] stand for. `out`: a NumPy array that
        takes them. Raises ShapeMismatch; InvalidArgument before train().

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pq = knear.ProductQuantizer(8).train(x)
        >>> near = pq.decode(pq.encode(x))
        >>> bool(np.square(near - x).sum() < 0.2 * np.square(x).sum())
        True
        """
        trained = self._trained()
        kept = _arrays.codes("codes", codes)
        _results.check_array(out, (len(kept), trained.dim), np.float32)
        return _results.into(out, trained.decode(kept, self._threads))

    def distances(
        self,
        queries: ArrayLike,
        codes: ArrayLike,
        metric: str = "l2",
        *,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Distances [q x n] of `queries` [q x dim] to what `codes` [n x code_size] stand for.
        `out`: a NumPy array that takes them.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((500, 16), dtype=np.float32)
        >>> pq = knear.ProductQuantizer(4).train(x)
        >>> codes = pq.encode(x)
        >>> distances = pq.distances(x[:3], codes)
        >>> np.allclose(distances[:, 0], np.square(x[:3] - pq.decode(codes[:1])).sum(1), rtol=1e-4)
        True

        metric: "l2" for squared distances, "ip" for inner products. Raises InvalidArgument for
        "cosine": distances of parts do not add up to it; take "ip" of vectors of unit length.
        """
        trained = self._trained()
        rows, kind = _arrays.matrix("queries", queries)
        kept, metric = _arrays.codes("codes", codes), _arrays.text("metric", metric)
        _results.check_array(out, (len(rows), len(kept)), np.float32)
        return _results.into(out, trained.distances(rows, kind, kept, metric, self._threads))

    def __repr__(self) -> str:
        state = "not trained" if self._made is None else f"dim={self._made.dim}"
        return f"<knear.ProductQuantizer {self.sub_quantizers}x{self.bits}, {state}>"


class ScalarQuantizer(Sealed):
    """Vectors with fewer bits a column: levels between the least and the largest value of each
    column, or halves.

    >>> import knear, numpy as np
    >>> x = np.random.default_rng(1).standard_normal((100, 8), dtype=np.float32)
    >>> sq = knear.ScalarQuantizer("8").train(x)
    >>> sq.encode(x).shape, float(np.abs(sq.decode(sq.encode(x)) - x).max()) < 0.02
    ((100, 8), True)

    code: "8" or "4" bits a column, with levels; "fp16" or "bf16", which only have to be told how
        many columns there are.
    threads: 0 for all that the process may use.
    """

    code: str

    def __init__(self, code: str = "8", *, threads: int = 0) -> None:
        self.code = _arrays.text("code", code)
        self._threads = _arrays.integer("threads", threads)
        self._made: _core.ScalarQuantizer | None = None

    def train(self, x: ArrayLike) -> "ScalarQuantizer":
        """Finds the levels of the columns of `x` [n x dim], n >= 1, and returns the object itself.

        >>> import knear, numpy as np
        >>> x = np.random.default_rng(1).standard_normal((100, 8), dtype=np.float32)
        >>> knear.ScalarQuantizer("4").train(x).code_size    # two columns a byte
        4

        Raises InvalidArgument for a NaN or infinity, with its row. Then the levels are those of
        before.
        """
        self._made = _core.ScalarQuantizer.train(*_arrays.matrix("x", x), self.code, self._threads)
        return self

    def _trained(self) -> _core.ScalarQuantizer:
        if self._made is None:
            raise InvalidArgument("the quantizer has no levels yet: call train() first")
        return self._made

    @property
    def code_size(self) -> int:
        """Bytes of a code."""
        return self._trained().code_size

    def encode(
        self,
        x: ArrayLike,
        *,
        out: NDArray[np.uint8] | None = None,
        progress: Progress = None,
    ) -> NDArray[np.uint8]:
        """The codes [n x code_size] of `x` [n x dim]: the nearest level of each value. `out`: a
        NumPy array that takes them; `progress`: as of KMeans.train.

        >>> import knear, numpy as np
        >>> x = np.array([[0.0], [1.0], [255.0]])
        >>> knear.ScalarQuantizer("8").train(x).encode(x).ravel().tolist()
        [0, 1, 255]

        Raises ShapeMismatch; InvalidArgument before train() and for a NaN or infinity, with its
        row.
        """
        trained = self._trained()
        rows, kind = _arrays.matrix("x", x)
        _results.check_array(out, (len(rows), trained.code_size), np.uint8)
        return _results.into(out, reporting(progress, trained.encode, rows, kind, self._threads))

    def decode(
        self, codes: ArrayLike, *, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The vectors [n x dim] that `codes` [n x code_size] stand for. `out`: a NumPy array that
        takes them. Raises ShapeMismatch; InvalidArgument before train().

        >>> import knear, numpy as np
        >>> x = np.array([[0.0, 10.0], [1.0, 12.5], [255.0, 20.0]])
        >>> sq = knear.ScalarQuantizer("fp16").train(x)
        >>> sq.decode(sq.encode(x)).tolist()
        [[0.0, 10.0], [1.0, 12.5], [255.0, 20.0]]
        """
        trained = self._trained()
        kept = _arrays.codes("codes", codes)
        _results.check_array(out, (len(kept), trained.dim), np.float32)
        return _results.into(out, trained.decode(kept, self._threads))

    def distances(
        self,
        queries: ArrayLike,
        codes: ArrayLike,
        metric: str = "l2",
        *,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Distances [q x n] of `queries` [q x dim] to what `codes` [n x code_size] stand for.
        `out`: a NumPy array that takes them.

        >>> import knear, numpy as np
        >>> x = np.array([[0.0, 0.0], [3.0, 4.0], [255.0, 255.0]])
        >>> sq = knear.ScalarQuantizer("8").train(x)
        >>> sq.distances(np.array([[0.0, 0.0]]), sq.encode(x[:2])).tolist()
        [[0.0, 25.0]]

        metric: "l2" for squared distances, "ip" for inner products, "cosine" for 1 - cos.

        Raises ShapeMismatch; InvalidArgument before train() and for a NaN or infinity, with its
        row.
        """
        trained = self._trained()
        rows, kind = _arrays.matrix("queries", queries)
        kept, metric = _arrays.codes("codes", codes), _arrays.text("metric", metric)
        _results.check_array(out, (len(rows), len(kept)), np.float32)
        return _results.into(out, trained.distances(rows, kind, kept, metric, self._threads))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._made is not None:
            state["_made"] = self._made.dim, self._made.low, self._made.step
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = state.pop("_made")
        self.__dict__.update(state)
        self._made = None
        if made is not None:
            dim, low, step = made
            if low.size:
                self._made = _core.ScalarQuantizer.from_levels(self.code, low, step)
            else:
                self._made = _core.ScalarQuantizer.of_halves(self.code, dim)

    def __repr__(self) -> str:
        state = "not trained" if self._made is None else f"dim={self._made.dim}"
        return f"<knear.ScalarQuantizer {self.code}, {state}>"
