"""Codes without lists: IndexPQ and IndexScalarQuantizer; and what lists of codes have of these."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .. import _arrays, _core, _options
from .._index import Index as KnearIndex
from .base import (
    METRIC_L2,
    Index,
    Sealed,
    metric_name,
    padded,
    refuse,
    threads,
    within,
)
from .flat import IndexFlatCodes, _permutation
from .interrupts import InterruptCallback, interruptions
from .numbering import Numbering
from .parameters import SearchParametersPQ
from .quantizers import KeptAs, PolysemousTraining, ProductQuantizer, ScalarQuantizer
from .selectors import rows_named
from .store import Store
from .vectors import Copy, UInt8Vector

# Making an index takes about as long as comparing its rows with this many queries.
PAIRS_OF_AN_INDEX = 64
# An index takes longer than that to begin a search.
FEW_PAIRS = 2048
_MOST_PLAIN = 1024  # neighbours
_MANY_CENTROIDS = 1 << 17  # of all queries, which are compared faster once they are packed


def is_same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is int and a == b)


class Searched:
    """The rows of a Store as a knear.Index, whose ids are the numbers that the rows had when it was
    made or they were added."""

    def __init__(self, index: KnearIndex, rows: Numbering | None = None) -> None:
        self.index = index
        self._numbering = Numbering(len(index)) if rows is None else rows

    def without(self, rows: NDArray[np.int64]) -> Searched:
        self.index.remove(self._numbering.first(rows))
        return Searched(self.index, self._numbering.without(rows))

    def with_rows(self, rows: NDArray[Any], kind: str, lists: Any) -> Searched:
        """With rows of this element type behind, as the index keeps them, in these lists [n]."""
        first = self.index.next_id
        self.index._index.add_to_lists(rows, kind, lists, threads())
        return Searched(self.index, self._numbering.with_rows(first, len(rows)))

    def is_mostly_gone(self) -> bool:
        return self.index.next_id > 4 * len(self.index) + 1024

    def search(self, x: Any, k: int, **options: Any) -> tuple[Any, Any]:
        """(distances, row numbers); `filter` is a bool a row."""
        found = self.index.search(x, k, **self._asked(options))
        return found.distances, self._rows(found.ids)

    def range_search(self, x: Any, radius: float, **options: Any) -> tuple[Any, Any, Any]:
        begin, distances, ids = self.index.range_search(x, radius, **self._asked(options))
        return begin, distances, self._rows(ids)

    def search_lists(
        self, x: NDArray[np.float32], k: int, lists: NDArray[np.int64], allowed: Any, report: Any
    ) -> tuple[Any, Any]:
        """search() in these lists [q x p], none of them twice for a query; -1 is no list."""
        allowed = self._asked({"filter": allowed})["filter"]
        settings = _options.settings({}, threads(), None, "cpu")
        filter = _arrays.filter_of(allowed, None, len(self.index), self.index.next_id)
        distances, ids, about = self.index._index.search_lists(
            x, "f32", lists, k, settings, *filter, interruptions()
        )
        report.update(about.as_dict())
        return distances, self._rows(ids)

    def _asked(self, options: dict[str, Any]) -> dict[str, Any]:
        allowed = options.get("filter")
        if self._numbering.is_plain() or allowed is None:
            return options
        mask = np.zeros(self.index.next_id, np.bool_)
        mask[self._numbering.all()] = allowed
        return {**options, "filter": mask}

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._numbering.rows(ids)


class Coded(Index):
    """Keeps codes in a Store. Searches go to a knear.Index that is made of it when one comes after
    a change: of the codes where knear has such codes, else of the vectors that they stand for.
    Where rows were only added and removed since, so they are there."""

    def __init__(self, d: int, metric: int) -> None:
        super().__init__(d, metric)
        # What the index of searches was made of, the number of rows and that index.
        self._searched: tuple[Any, int, Searched] | None = None
        # What _plain_search() was made of, and it.
        self._plain: tuple[tuple[Any, ...], Any] | None = None
        self._plain_pairs = 0  # of a query and a row, that it has compared since there was an index
        self._plain_version = -1  # of the store that it has searched last

    def _set_code_size(self, size: int) -> None:
        self.code_size = size
        self._store = Store(size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_searched": None, "_plain": None}

    @property
    def ntotal(self) -> int:
        return self._store.size

    def reset(self) -> None:
        self._store.clear()
        self._plain_pairs = 0

    def _sources(self) -> tuple[Any, ...]:
        """What the quantizers are made of: other objects after a change of any."""
        return ()

    def _learned(self) -> list[NDArray[Any]]:
        """The arrays by which codes are made and read."""
        return [each for each in self._sources() if isinstance(each, np.ndarray)]

    def _check_learned(self, other: Coded) -> None:
        """Refuses an index whose codes mean other vectors here: FAISS takes them, after which no
        row is found where it was."""
        if not all(map(np.array_equal, self._learned(), other._learned())):
            self._refuse_trained_apart()

    @staticmethod
    def _refuse_trained_apart() -> NoReturn:
        refuse(
            "otherIndex was trained apart, so that its codes stand for other vectors here: "
            "train one index and copy it, or add the vectors"
        )

    def _kept_as(self) -> KeptAs:
        """How knear keeps such rows."""
        raise NotImplementedError

    def _list_centroids(self) -> NDArray[np.float32] | None:
        """Those of lists [nlist x d]."""
        return None

    def _by_residual(self) -> bool:
        """Whether codes are of what is left beside the centroid of a list."""
        return False

    def _trained_index(self) -> Any:
        """A _core.Index of such rows, without any."""
        kept = self._kept_as()
        of_codes = kept.kind == "codes"
        return _core.trained_index(
            self.d,
            metric_name(self.metric_type),
            self._list_centroids(),
            *kept[:3],
            of_codes and self._by_residual(),
            kept.numbers,
        )

    def _searched_anew(self) -> Searched:
        """All rows as an index, which takes the codes from where they lie."""
        index = KnearIndex.__new__(KnearIndex)
        index._index = self._trained_index()
        searched = Searched(index)
        if not self._store.size:
            return searched
        return searched.with_rows(*self._kept_from(0, index))

    def _now(self) -> tuple[Any, ...]:
        """What the index of searches is made of."""
        return self._store.version, self._store, self.metric_type, *self._sources()

    # Searches without an index of all rows.
    def _plain_options(self) -> tuple[Any, ...] | None:
        """(kind, low, span, centroids) of a _core.PlainSearch; None where it has not such codes."""
        return None

    def _flat_centroids(self) -> NDArray[np.float32] | None:
        """Those of lists, which are found by comparing all of them; None for others."""
        return None

    def _lists_by_index(self, x: NDArray[np.float32], probes: int) -> NDArray[np.int64]:
        """The nearest lists of each query [q x probes], for many: by an index of the centroids."""
        raise NotImplementedError

    def _plain_search(self) -> Any:
        now = self.metric_type, *self._sources()
        had = self._plain
        if had is None or not all(map(is_same, had[0], now)):
            options, made = self._plain_options(), None
            if options is not None:
                kind, *arrays = options
                like = self._trained_index() if kind in ("8", "4") else None
                metric, coarse = metric_name(self.metric_type), self._flat_centroids()
                made = _core.PlainSearch(kind, metric, self.d, like, *arrays, coarse)
            had = self._plain = now, made
        return had[1]

    def _rows_to_index(self) -> int:
        """How many rows the index of searches lacks, or has still."""
        had, size = self.__dict__.get("_searched"), self._store.size
        if had is None:
            return size
        now = self._now()
        if not all(map(is_same, had[0][1:], now[1:])):
            return size
        if had[0][0] == now[0]:
            return 0
        removed = self._store.removed_since(had[0][0])
        return size if removed is None else abs(size - had[1]) + 2 * sum(map(len, removed))

    def _near_plainly(
        self,
        x: NDArray[np.float32],
        k: int,
        allowed: Any,
        probes: int = 1,
        of: int = 0,
        lists: Any = None,
    ) -> Any:
        """(distances, row numbers, pairs compared) of a search in the nearest `probes` of so many
        lists, or in these [q x probes]; of 0: of all rows. None where it goes to the index of all
        rows: where that is there, or these searches have taken as long as making it."""
        InterruptCallback.check()
        store, order = self._store, (None, None)
        pairs = len(x) * store.size * probes // max(1, of)
        # All rows are gone through, too, where they are not in the order of their lists.
        work = pairs if store.is_in_order(of) else pairs + store.size
        few = work <= FEW_PAIRS
        if k > _MOST_PLAIN or not (few or self._pays(work)):
            return None
        search = self._plain_search()
        if search is None:
            return None
        if of and lists is None and len(x) * of > _MANY_CENTROIDS:
            lists = self._lists_by_index(x, probes)
        if of:
            # The rows of few lists are looked for; once.
            many = 2 * probes * len(x) >= of
            if self._plain_version == store.version or many or store.has_order(of):
                order = store.by_list(of)
            self._plain_version = store.version
        found = search.nearest(
            store.codes,
            store.lists if of else None,
            *order,
            allowed,
            x,
            lists,
            probes if of and lists is None else 0,
            k,
            threads(),
        )
        if found is not None and not few:
            self._plain_pairs += work
        return found

    def _pays(self, pairs: int) -> bool:
        """Whether comparing so many pairs of a query and a row costs no more than an index."""
        return self._plain_pairs + pairs <= PAIRS_OF_AN_INDEX * self._rows_to_index()

    def _index(self) -> Searched:
        self._plain_pairs = 0
        now, had = self._now(), self.__dict__.get("_searched")
        same = (
            had is not None and len(had[0]) == len(now) and all(map(is_same, had[0][1:], now[1:]))
        )
        if same and had[0][0] == now[0]:
            return had[2]
        size = self._store.size
        removed = self._store.removed_since(had[0][0]) if same else None
        # One thread takes the index to change it; another finds none, and makes one.
        if removed is not None and self.__dict__.pop("_searched", None) is had:
            searched = self._changed_since(had[1], had[2], removed)
        else:
            searched = self._searched_anew()
        self._searched = now, size, searched
        return searched

    def _changed_since(
        self, size: int, searched: Searched, removed: list[NDArray[np.int64]]
    ) -> Searched:
        """That of `size` rows after these removals, with the rows that were added in between and
        since. They stand behind, so that those of them that are gone again never get there."""
        for gone in removed:
            old = gone[gone < size]
            if len(old):
                searched = searched.without(old)
            size -= len(old)
        if size < self._store.size:
            searched = searched.with_rows(*self._kept_from(size, searched.index))
        if searched.is_mostly_gone():
            return self._searched_anew()
        return searched

    def _kept_from(self, first: int, index: KnearIndex) -> tuple[NDArray[Any], str, Any]:
        """(rows, element type, lists) of the rows from this one on, as an index of all keeps
        them."""
        codes, own_lists = self._store.behind(first)
        lists = own_lists if index.lists else None
        kind = index.factory.rpartition(",")[2]
        if kind == "SQfp16":
            return codes.view(np.float16), "f16", lists
        if kind == "SQbf16":
            return codes.view(np.uint16), "bf16", lists
        if not index._index.keeps_vectors:
            return codes, "u8", lists
        return self._decode_stored(codes, own_lists), "f32", lists

    def _decode_stored(
        self, codes: NDArray[np.uint8], lists: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """What codes in these lists stand for."""
        raise NotImplementedError

    def _decode_rows(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return self._decode_stored(*self._store.at(rows))


class _OfCodes(Coded, IndexFlatCodes):
    """Codes in a Store, under ids 0, 1, ..."""

    @property
    def codes(self) -> UInt8Vector:
        """All codes, one after another: a copy."""
        return Copy(self._store.codes)

    def _trained(self) -> None:
        if not self.is_trained:
            refuse("the index is not trained")

    def _add(self, x: NDArray[np.float32], ids: NDArray[np.int64] | None) -> None:
        self._trained()
        if ids is not None:
            refuse("add_with_ids not implemented for this type of index: take an IndexIDMap")
        self._encode_into(x, self._store.room(len(x)))
        self._store.fill(len(x), np.arange(self.ntotal, self.ntotal + len(x)))
        self._plain_search()

    def _encode_into(self, x: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        out[:] = self._encode(x)

    def _add_codes(self, codes: NDArray[np.uint8], ids: NDArray[np.int64] | None) -> None:
        self._store.add(codes, np.arange(self.ntotal, self.ntotal + len(codes)))

    def check_compatible_for_merge(self, otherIndex: Any) -> None:
        super().check_compatible_for_merge(otherIndex)
        self._check_learned(otherIndex)

    def _filter(self, params: Any) -> NDArray[np.bool_] | None:
        selector = getattr(params, "sel", None)
        return None if selector is None else selector.mask_to(self.ntotal)

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        self._trained()
        allowed = self._filter(params)
        near = self._near_plainly(x, k, allowed)
        if near is not None:
            return padded(*near[:2], self.metric_type)
        distances, rows = self._index().search(
            x, k, filter=allowed, threads=threads(), progress=interruptions()
        )
        return padded(distances, rows, self.metric_type)

    def _within(self, x: NDArray[np.float32], radius: float, params: Any) -> Any:
        self._trained()
        found = self._index().range_search(
            x, radius, filter=self._filter(params), threads=threads(), progress=interruptions()
        )
        return within(*found, radius, self.metric_type)

    def _decode_stored(
        self, codes: NDArray[np.uint8], lists: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        return self._decode(codes)

    def _vectors_of(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if ids.size and not (ids.min() >= 0 and ids.max() < self.ntotal):
            refuse(f"a key is not among the ids 0 to {self.ntotal - 1}")
        return self._decode_rows(ids)

    def _remove(self, selector: Any) -> int:
        gone = rows_named(selector, self.ntotal)
        if len(gone):
            self._store.remove(gone, renumber=True)
        return len(gone)

    def permute_entries(self, perm: NDArray[np.int64]) -> None:
        """Code perm[i] gets the id i."""
        codes = self._store.codes[_permutation(perm, self.ntotal)]
        self._store.clear()
        self._add_codes(codes, None)

    def _merge(self, other: Any, add_id: int) -> None:
        if other.code_size != self.code_size:
            refuse("codes of other sizes cannot be merged")
        self._add_codes(other._store.codes, None)
        other.reset()

    def sa_code_size(self) -> int:
        return self.code_size


class IndexPQStats(Sealed):
    """What searches of an IndexPQ did since reset(): FAISS's indexPQ_stats. Every code passes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.nq = self.ncode = self.n_hamming_pass = 0


indexPQ_stats = IndexPQStats()


class IndexPQ(_OfCodes):
    """Codes of M sub-quantizers of nbits each, each compared with a query. Polysemous filters are
    not applied: every code is measured."""

    ST_PQ, ST_HE, ST_generalized_HE, ST_SDC, ST_polysemous, ST_polysemous_generalize = range(6)

    def __init__(self, d: int = 0, M: int = 0, nbits: int = 8, metric: int = METRIC_L2) -> None:
        super().__init__(d, metric)
        self.pq = ProductQuantizer(d, M, nbits)
        self.is_trained = False
        self.do_polysemous_training = False
        self.polysemous_training = PolysemousTraining()
        self.search_type = self.ST_PQ
        self.encode_signs = False
        self.polysemous_ht = nbits * M + 1
        self._set_code_size(self.pq.code_size)

    def _train(self, x: NDArray[np.float32]) -> None:
        self.pq.train(x)
        self.is_trained = True

    def _parameters(self) -> SearchParametersPQ:
        return SearchParametersPQ(search_type=self.search_type)

    def _search(self, x: NDArray[np.float32], k: int, params: Any) -> tuple[Any, Any]:
        kind = getattr(params, "search_type", self.search_type)
        if kind in (self.ST_HE, self.ST_generalized_HE):
            raise NotImplementedError(
                "search by Hamming distances of codes is not there; ST_PQ measures all of them"
            )
        indexPQ_stats.nq += len(x)
        indexPQ_stats.ncode += len(x) * self.ntotal
        if kind not in (self.ST_PQ, self.ST_SDC):
            indexPQ_stats.n_hamming_pass += len(x) * self.ntotal
        if kind == self.ST_SDC:
            x = self._decode(self._encode(x))
        return super()._search(x, k, params)

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.pq.compute_codes(x)

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.pq.decode(codes)

    def _sources(self) -> tuple[Any, ...]:
        return (self.pq.centroids.array,)

    def _kept_as(self) -> KeptAs:
        return self.pq._kept_as()


class IndexScalarQuantizer(_OfCodes):
    """Codes of a ScalarQuantizer of this type."""

    def __init__(
        self, d: int = 0, qtype: int = ScalarQuantizer.QT_8bit, metric: int = METRIC_L2
    ) -> None:
        super().__init__(d, metric)
        self.sq = ScalarQuantizer(d, qtype)
        self.is_trained = self.sq.is_trained
        self._set_code_size(self.sq.code_size)

    def _train(self, x: NDArray[np.float32]) -> None:
        self.sq.train(x)
        self.is_trained = True

    def _encode(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.sq.compute_codes(x)

    def _encode_into(self, x: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        self.sq._code_into(x, out)

    def _decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.sq.decode(codes)

    def _sources(self) -> tuple[Any, ...]:
        return (self.sq.trained.array,)

    def _kept_as(self) -> KeptAs:
        return self.sq._kept_as()

    def _plain_options(self) -> tuple[Any, ...] | None:
        return self.sq._plain_options()
