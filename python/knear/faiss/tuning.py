"""Parameters of an index by their names, and which of their values are worth their time:
ParameterSpace, with the criteria and the operating points of its explore().

    space = faiss.ParameterSpace()
    space.initialize(index)
    criterion = faiss.IntersectionCriterion(len(queries), 10)
    criterion.set_groundtruth(None, ids)              # [n x 10], the true neighbours
    criterion.nnn = 10
    space.explore(index, queries, criterion).display()

knear's own way is Index.tune() and search(recall=0.9), which measure by themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .base import Sealed, matrix, refuse
from .codes import IndexPQ
from .fields import whole
from .ivf import IndexIVF, IndexIVFPQ
from .randomness import permutation
from .saying import say
from .vectors import Float32Vector, Float64Vector, Int64Vector, Objects
from .wrappers import IndexIDMap, IndexPreTransform, IndexRefine


class AutoTuneCriterion(Sealed):
    """How good an answer is, from 0 to 1, by the true neighbours of `nq` queries; `nnn` are asked
    for."""

    def __init__(self, nq: int, nnn: int) -> None:
        self.nq, self.nnn, self.gt_nnn = whole("nq", nq), whole("nnn", nnn), 0
        self.gt_D, self.gt_I = Float32Vector(), Int64Vector()

    def set_groundtruth(self, D: Any, I: Any) -> None:  # noqa: E741
        """The true neighbours I [nq x gt_nnn], nearest first; their distances D may be None."""
        self.nq, self.gt_nnn = np.shape(I)
        assert D is None or np.shape(D) == np.shape(I), "D and I have other shapes"
        if D is not None:
            self.gt_D.set(D)
        self.gt_I.set(I)

    def evaluate(self, D: Any, I: Any) -> float:  # noqa: E741
        """The share of an answer I [nq x nnn] that is right."""
        raise NotImplementedError

    def _tables(self, found: Any, least: int, wanted: int) -> tuple[Any, Any]:
        """(the true ids, those found), where there are enough of both."""
        full = self.gt_I.size() == self.nq * self.gt_nnn
        if not (full and self.gt_nnn >= max(1, least) and self.nnn >= wanted):
            refuse("ground truth not initialized")
        true = self.gt_I.array.reshape(self.nq, self.gt_nnn)
        return true, np.ravel(found)[: self.nq * self.nnn].reshape(self.nq, self.nnn)


class OneRecallAtRCriterion(AutoTuneCriterion):
    """How many queries have their nearest neighbour among the first R."""

    def __init__(self, nq: int, R: int) -> None:
        super().__init__(nq, R)
        self.R = whole("R", R)

    def evaluate(self, D: Any, I: Any) -> float:  # noqa: E741
        true, found = self._tables(I, 1, self.R)
        return float((found[:, : self.R] == true[:, :1]).any(1).sum()) / max(1, self.nq)


class IntersectionCriterion(AutoTuneCriterion):
    """How many of the R nearest neighbours are among the first R."""

    def __init__(self, nq: int, R: int) -> None:
        super().__init__(nq, R)
        self.R = whole("R", R)

    def evaluate(self, D: Any, I: Any) -> float:  # noqa: E741
        true, found = self._tables(I, self.R, self.R)
        both = (np.intersect1d(a[: self.R], b[: self.R]) for a, b in zip(true, found, strict=True))
        return sum(map(len, both)) / max(1, self.nq * self.R)


class OperatingPoint(Sealed):
    """What a combination of parameters reaches (`perf`), and in what time (`t`, seconds)."""

    def __init__(self, perf: float = 0.0, t: float = 0.0, key: str = "", cno: int = -1) -> None:
        self.perf, self.t, self.key, self.cno = float(perf), float(t), key, whole("cno", cno)


class OperatingPoints(Sealed):
    """Those tried, and the optimal ones: no other reaches as much in less time."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Leaves the point of doing nothing, in no time."""
        self.all_pts, self.optimal_pts = Objects(), Objects([OperatingPoint()])

    def add(self, perf: float, t: float, key: str, cno: int = 0) -> bool:
        """Whether it is optimal. The first of equal ones stays."""
        point = OperatingPoint(perf, t, key, cno)
        self.all_pts.append(point)
        if perf == 0 or any(a.perf >= perf and a.t <= t for a in self.optimal_pts):
            return False
        kept = [a for a in self.optimal_pts if a.perf > perf or a.t < t]
        self.optimal_pts = Objects(sorted([*kept, point], key=lambda a: a.perf))
        return True

    def merge_with(self, other: OperatingPoints, prefix: str = "") -> int:
        """Adds those of `other` with the prefix before their keys; how many were optimal."""
        return sum(self.add(a.perf, a.t, prefix + a.key, a.cno) for a in other.all_pts)

    def t_for_perf(self, perf: float) -> float:
        """The least time that reaches it; 1e50 for none."""
        return next((a.t for a in self.optimal_pts if a.perf >= perf), 1e50)

    def display(self, only_optimal: bool = True) -> None:
        optimal = {a.cno for a in self.optimal_pts}
        print(
            f"Tested {len(self.all_pts)} operating points, {len(self.optimal_pts)} ones are "
            "Pareto-optimal:"
        )
        for a in self.optimal_pts if only_optimal else self.all_pts:
            star = "*" if not only_optimal and a.cno in optimal else ""
            print(f"cno={a.cno} key={a.key} perf={a.perf:.4f} t={a.t:.3f} {star}")

    def all_to_gnuplot(self, fname: str) -> None:
        """Writes a line "perf t key" for each."""
        with open(fname, "w") as file:
            file.writelines(f"{a.perf:g} {a.t:g} {a.key}\n" for a in self.all_pts)

    def optimal_to_gnuplot(self, fname: str) -> None:
        """Writes the steps of the optimal ones."""
        before = 0.0
        with open(fname, "w") as file:
            for a in self.optimal_pts:
                file.write(f"{before:g} {a.t:g}\n{a.perf:g} {a.t:g} {a.key}\n")
                before = a.perf


class ParameterRange(Sealed):
    """The values of a parameter that are tried, from the fastest to the best."""

    def __init__(self, name: str = "") -> None:
        self.name, self.values = name, Float64Vector()


class ParameterSpace(Sealed):
    """Parameters of an index by their names: nprobe, max_codes, k_factor, k_factor_rf, ht, verbose,
    and quantizer_... for those of the quantizer of inverted lists.

    A combination of the `parameter_ranges` has a number: its places in these, the first range
    moving fastest. explore() tries `n_experiments` of them, 0 for all, in searches of `batchsize`
    queries, in several threads if thread_over_batches, again until min_test_duration seconds.
    """

    def __init__(self) -> None:
        self.verbose = 1
        self.n_experiments = 500
        self.batchsize = 1 << 30
        self.thread_over_batches = False
        self.min_test_duration = 0.0
        self.parameter_ranges = Objects()

    # Ranges.
    def add_range(self, name: str) -> ParameterRange:
        """That of this name, a new one if there is none."""
        for each in self.parameter_ranges:
            if each.name == name:
                return each
        self.parameter_ranges.append(ParameterRange(name))
        return self.parameter_ranges[-1]

    def initialize(self, index: Any) -> None:
        """Adds the ranges that FAISS has for such an index. Those of `ht` change no answer here."""
        if isinstance(index, IndexPreTransform):
            index = index.index
        if isinstance(index, IndexRefine):
            self.add_range("k_factor_rf").values.set(2.0 ** np.arange(7))
            index = index.base_index
        if isinstance(index, IndexPreTransform):
            index = index.index
        if isinstance(index, IndexIVF):
            probes = 1 << np.arange(13)
            self.add_range("nprobe").values.set(probes[probes < index.nlist])
            of_quantizer = ParameterSpace()
            of_quantizer.initialize(index.quantizer)
            for each in of_quantizer.parameter_ranges:
                self.add_range("quantizer_" + each.name).values.set(each.values.array)
        if isinstance(index, (IndexPQ, IndexIVFPQ)):
            bits = 8 * index.pq.code_size
            some = np.arange(2, bits // 2 + 1, 2) if bits % 32 == 0 else []
            self.add_range("ht").values.set([*some, bits])

    def n_combinations(self) -> int:
        return math.prod(each.values.size() for each in self.parameter_ranges)

    def _places(self, cno: int) -> Iterator[tuple[ParameterRange, int]]:
        for each in self.parameter_ranges:
            cno, place = divmod(cno, each.values.size())
            yield each, place

    def combination_name(self, cno: int) -> str:
        """As "nprobe=16,ht=32"."""
        return ",".join(f"{each.name}={each.values.at(i):g}" for each, i in self._places(cno))

    def combination_ge(self, c1: int, c2: int) -> bool:
        """Whether no parameter of combination c1 is smaller than in c2."""
        both = zip(self._places(c1), self._places(c2), strict=True)
        return all(a >= b for (_, a), (_, b) in both)

    def display(self) -> None:
        print(
            f"ParameterSpace, {len(self.parameter_ranges)} parameters, "
            f"{self.n_combinations()} combinations:"
        )
        for each in self.parameter_ranges:
            values = ", ".join(f"{value:g}" for value in each.values.array)
            print(f"   {each.name}: [ {values}]")

    # Setting.
    def set_index_parameters(self, index: Any, description: Any) -> None:
        """Those of the combination of a number, or of a text as "nprobe=16,max_codes=1000"."""
        if not isinstance(description, str):
            for each, i in self._places(whole("cno", description)):
                self.set_index_parameter(index, each.name, each.values.at(i))
            return
        for one in description.replace(",", " ").split():
            name, _, value = one.partition("=")
            try:
                number = float(value)
            except ValueError:
                refuse(f"could not interpret parameters {one}")
            self.set_index_parameter(index, name, number)

    def set_index_parameter(self, index: Any, name: str, value: float) -> None:
        say(self.verbose > 1, f"    set_index_parameter {name}={value:g}")
        if not _set(index, name, value):
            refuse(f"ParameterSpace::set_index_parameter: could not set parameter {name}")

    # Trying.
    def update_bounds(self, cno: int, op: OperatingPoint, bounds: Any) -> None:
        """Lowers bounds[0], what combination `cno` reaches at most, and raises bounds[1], the time
        that it takes at least, by a point that was measured: as if each parameter cost time, and
        were worth it."""
        if self.combination_ge(cno, op.cno):
            bounds[1] = max(bounds[1], op.t)
        if self.combination_ge(op.cno, cno):
            bounds[0] = min(bounds[0], op.perf)

    def explore(self, index: Any, xq: ArrayLike, crit: AutoTuneCriterion) -> OperatingPoints:
        """What combinations reach for the queries xq [nq x d], but those that can bring nothing
        new. The index is left with one of them."""
        assert np.shape(xq) == (crit.nq, index.d), (
            f"queries are {np.shape(xq)}, where the criterion and the index have "
            f"{(crit.nq, index.d)}"
        )
        queries = matrix(xq)
        points = OperatingPoints()
        if len(queries):
            index.search(queries[:1], crit.nnn)  # what the first search makes is of no parameter
        order = self._order()
        for xp, cno in enumerate(order):
            bounds = [1.0, 0.0]
            for point in points.all_pts if self.n_experiments else ():
                self.update_bounds(cno, point, bounds)
            name = self.combination_name(cno)
            told = (
                f"  {xp}/{len(order)}: cno={cno} {name} "
                f"bounds [perf<={bounds[0]:.3f} t>={bounds[1]:.3f}]"
            )
            if self.n_experiments and points.t_for_perf(bounds[0]) <= bounds[1]:
                say(self.verbose > 0, f"{told} skip")
                continue
            self.set_index_parameters(index, cno)
            t, runs, found = self._timed(index, queries, crit.nnn)
            perf = crit.evaluate(*found)
            keep = "*" if points.add(perf, t, name, cno) else ""
            count = f"{runs} {'run' if runs == 1 else 'runs'}"
            say(self.verbose > 0, f"{told}  perf {perf:.3f} t {t:.3f} ({count}) {keep}")
        return points

    def _order(self) -> list[int]:
        """The combinations to try: the fastest, the best, then others at random."""
        count = self.n_combinations()
        if not self.n_experiments or count < 2:
            return list(range(count))
        most = min(self.n_experiments, count)
        if most < 3 and count > 2:
            refuse(f"n_experiments must be 3 at least, or 0 for all, but is {self.n_experiments}")
        return [0, count - 1, *(1 + permutation(count - 2, 1234)).tolist()][:most]

    def _timed(self, index: Any, x: NDArray[np.float32], k: int) -> tuple[float, int, Any]:
        """(seconds of a search, how many there were, what they found)."""
        distances, ids = np.empty((len(x), k), np.float32), np.empty((len(x), k), np.int64)

        def search(begin: int) -> None:
            some = slice(begin, begin + self.batchsize)
            distances[some], ids[some] = index.search(x[some], k)

        parts = range(0, len(x), self.batchsize)
        start, runs = time.perf_counter(), 0
        with ThreadPoolExecutor() as pool:
            while True:
                list((pool.map if self.thread_over_batches else map)(search, parts))
                runs += 1
                took = time.perf_counter() - start
                if took >= self.min_test_duration:
                    return took / runs, runs, (distances, ids)


def _set(index: Any, name: str, value: float) -> bool:
    if name == "verbose":
        index.verbose = bool(value)
    if isinstance(index, (IndexIDMap, IndexPreTransform)):
        return _set(index.index, name, value)
    if isinstance(index, IndexRefine):
        if name in ("k_factor", "k_factor_rf"):
            index.k_factor = int(value) if name == "k_factor_rf" else value
            return True
        return _set(index.base_index, name, value)
    if name == "verbose":
        return True
    if isinstance(index, IndexIVF) and name.startswith("quantizer_"):
        return _set(index.quantizer, name.removeprefix("quantizer_"), value)
    if name in ("nprobe", "max_codes") and isinstance(index, IndexIVF):
        setattr(index, name, int(value) if math.isfinite(value) else 0)
        return True
    if name == "ht" and hasattr(index, "polysemous_ht"):
        if value < index.code_size * 8:
            index.polysemous_ht = int(value)
        if hasattr(index, "search_type"):
            index.search_type = index.ST_polysemous if value < index.code_size * 8 else index.ST_PQ
        elif value >= index.code_size * 8:
            index.polysemous_ht = 0
        return True
    return False
