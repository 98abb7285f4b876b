"""k-means: knear.KMeans."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _core, _results
from ._progress import Bar, Progress, reporting, told
from ._sealed import Sealed
from .errors import InvalidArgument


def _step(values: tuple[Any, ...]) -> dict[str, Any]:
    names = ("restart", "iteration", "objective", "moved", "empty", "seconds", "fallback_rows")
    return dict(zip(names, values, strict=True))


def _frozen_rows(frozen: Any, given: int) -> int:
    """How many of so many first centroids are frozen: all for True, or a number of them."""
    if isinstance(frozen, (bool, np.bool_)):
        if frozen and not given:
            raise InvalidArgument("frozen is for centroids that are given, but initial has none")
        return given if frozen else 0
    count = _arrays.integer("frozen", frozen)
    if not 0 <= count <= given:
        raise InvalidArgument(
            f"frozen must be from 0 to {given}, the rows of initial, but is {count}"
        )
    return count


class KMeans(Sealed):
    """Vectors in k clusters around centroids, by Lloyd's iterations.

    >>> import knear, numpy as np
    >>> x = np.array([[0.0], [1.0], [10.0], [11.0]])     # [n x dim], k <= n
    >>> km = knear.KMeans(2, iterations=20, seed=1).train(x)
    >>> sorted(km.centroids.ravel().tolist())            # [2 x 1] float32
    [0.5, 10.5]
    >>> distances, ids = km.assign(x)                    # the nearest centroid of each row
    >>> distances.tolist()
    [0.25, 0.25, 0.25, 0.25]

    k: the number of centroids.
    iterations: at most so many; fewer where no row moves any more.
    metric: "l2"; or spherical k-means with centroids of length 1, by "ip" of rows as they are or
        by "cosine".
    seed: the same centroids for the same seed, data and options, with any number of threads on any
        machine.
    seeding: the first centroids: "random" rows, or "k-means++", each far from those before.
    restarts: as often from other seeds; the best is kept.
    tolerance: end once an iteration improves the objective by no more than this share of it.
    rows_per_centroid: with more rows, use a random sample of so many for each centroid; 0: all.
    levels: 2 clusters the rows around about sqrt(k) centroids first, then each cluster by itself:
        for very many centroids; "l2".
    threads: 0 for all that the process may use.
    device: where train() assigns rows and adds them up: "cpu", or "cuda" and "cuda:N" for a GPU,
        where knear was built for them; the centroids are the same to the bit. What the GPU has no
        memory for the processor does (`steps` says of how many rows). x is in the processor's
        memory.

    Every row goes to the centroid that is nearest in float64, ties to the smaller number.

    Centroids are float32, of float64 rows too, which are not rounded themselves: a centroid is the
    mean of its rows, rounded, and distances are to what it is then. Float64 rows that lie so far
    from 0 that float32 cannot tell them apart, as times in seconds since 1970, are refused:
    subtract the mean of each column first, or use knear.sklearn.KMeans, which does that, and whose
    centres are float64 for float64 rows.
    """

    k: int

    def __init__(
        self,
        k: int,
        *,
        iterations: int = 25,
        metric: str = "l2",
        seed: int = 1,
        seeding: str = "random",
        restarts: int = 1,
        tolerance: float = 0.0,
        rows_per_centroid: int = 0,
        levels: int = 1,
        threads: int = 0,
        device: str = "cpu",
    ) -> None:
        self.k = _arrays.integer("k", k)
        if self.k < 1:
            raise InvalidArgument(f"k must be at least 1, but is {self.k}")
        self._metric = _arrays.text("metric", metric)
        self._threads = _arrays.integer("threads", threads)
        self._device = _arrays.text("device", device)
        self._options = (
            _arrays.integer("iterations", iterations),
            _arrays.integer("seed", seed) % 2**64,
            _arrays.text("seeding", seeding),
            _arrays.integer("restarts", restarts),
            _arrays.number("tolerance", tolerance),
            _arrays.integer("rows_per_centroid", rows_per_centroid),
            _arrays.integer("levels", levels),
        )
        self._centroids: NDArray[np.float32] | None = None
        self._steps: list[dict[str, Any]] = []

    def train(
        self,
        x: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        initial: ArrayLike | None = None,
        frozen: bool | int = False,
        progress: Progress = None,
        on_step: Callable[[dict[str, Any]], Any] | None = None,
    ) -> "KMeans":
        """Finds the centroids of `x` [n x dim] and returns the object itself.

        >>> import knear, numpy as np
        >>> x = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> km = knear.KMeans(2).train(x, weights=[3, 1, 1, 1], initial=[[0.0], [11.0]])
        >>> km.centroids.tolist()
        [[0.25], [10.5]]
        >>> [(step["moved"], step["objective"]) for step in km.steps]
        [(4, 2.0), (0, 1.25)]

        weights: one for each row, not negative; None: all 1.
        initial: the first centroids [g x dim], g <= k; the others are seeded. With `frozen` these
            stay as they are; a number freezes the first so many of them.
        progress: a function of the stage and of the share done, which may stop the work by raising;
            True draws a bar with tqdm, which shows the objective too.
        on_step: a function that is called after each iteration with what it did, a dict as `steps`
            has them, and may stop the work by raising. Each of the restarts tells its own; with two
            levels the first one's are told.

        Raises InvalidArgument for k above the number of rows and for a NaN or infinity, with its
        row; ShapeMismatch; DeviceUnavailable for a GPU that is not there or a knear without CUDA.
        Then the centroids are those of before.
        """
        rows, kind = _arrays.matrix("x", x)
        first = None if initial is None else _arrays.floats("initial", initial, 2)
        heavy = None if weights is None else _arrays.floats("weights", weights, 1)
        frozen_rows = _frozen_rows(frozen, 0 if first is None else len(first))
        if not (on_step is None or callable(on_step)):
            raise InvalidArgument(f"on_step must be a function of a step, but is {on_step!r}")
        with told(progress) as tell:

            def after(*values: Any) -> None:
                step = _step(values)
                if isinstance(tell, Bar):
                    tell.note(f"objective {step['objective']:.6g}")
                if on_step is not None:
                    on_step(step)

            centroids, steps = _core.k_means(
                rows,
                kind,
                self.k,
                self._metric,
                *self._options,
                self._threads,
                first,
                frozen_rows,
                heavy,
                tell,
                after if on_step is not None or isinstance(tell, Bar) else None,
                self._device,
            )
        self._centroids = centroids
        self._steps = [_step(values) for values in steps]
        return self

    @property
    def centroids(self) -> NDArray[np.float32]:
        """The centroids [k x dim], float32. Raises InvalidArgument before train()."""
        if self._centroids is None:
            raise InvalidArgument("there are no centroids yet: call train() first")
        return self._centroids

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What each iteration did: "objective" of the assignment that it began with (the sum of
        squared distances, of inner products, or of 1 - cosine), how many rows "moved" to another
        centroid, how many centroids were "empty", "seconds", and of how many rows a device had no
        memory ("fallback_rows"), which the processor assigned. With two levels those of the second,
        all clusters together."""
        return self._steps

    def assign(
        self,
        x: ArrayLike,
        *,
        out: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None,
        progress: Progress = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(distances [n], ids [n]): the nearest centroid of each row of `x` [n x dim], exactly, by
        the processor; knear.knn(x, centroids, 1, device="cuda") has the same on a GPU. `out`: two
        NumPy arrays that take them; `progress`: as of train().

        >>> import knear, numpy as np
        >>> x = np.array([[0.0], [1.0], [10.0], [11.0]])
        >>> km = knear.KMeans(2).train(x, initial=[[0.0], [11.0]])
        >>> distances, ids = km.assign(np.array([[2.0], [9.0]]))
        >>> distances.tolist(), ids.tolist()
        ([2.25, 2.25], [0, 1])

        Raises InvalidArgument before train(); ShapeMismatch for another number of columns.
        """
        rows = _arrays.matrix("x", x)
        centroids = self.centroids
        _results.check_pair(out, rows[0].shape[:1], distances=np.float32, ids=np.int64)
        found = reporting(
            progress, _core.nearest_centroids, centroids, *rows, self._metric, self._threads
        )
        return _results.into(out, found)

    def __repr__(self) -> str:
        state = "not trained" if self._centroids is None else f"dim={self._centroids.shape[1]}"
        return f"<knear.KMeans k={self.k}, metric={self._metric!r}, {state}>"
