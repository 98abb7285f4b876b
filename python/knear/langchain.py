"""knear.langchain: a vector store of LangChain whose index is knear's.

    from knear.langchain import KnearVectorStore

    store = KnearVectorStore.from_texts(texts, embedding)
    store.similarity_search("what is asked", k=4, filter={"language": "en"})
    store.save_local("folder")
    store = KnearVectorStore.load_local("folder", embedding)

KnearVectorStore passes the standard tests of langchain-tests. It keeps the documents in memory,
each with a row of a knear.Index: exact search by default, any other index by its factory string.

langchain-core is needed: pip install ".[langchain]" in a clone of knear. It is imported with this
module alone, not with knear.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables.config import run_in_executor
    from langchain_core.vectorstores import VectorStore
except ImportError as error:
    raise ImportError(
        'knear.langchain needs langchain-core: pip install ".[langchain]" in a clone of knear'
    ) from error

from . import _arrays, _store_files
from ._index import Index
from ._readers_writer import ReadersWriter
from .errors import InvalidArgument, ShapeMismatch

__all__ = ["KnearVectorStore"]

# A filter: metadata that a document must have, or a function that says of a document whether it may
# be found.
Filter = Mapping[str, Any] | Callable[[Document], bool]

# Of the indexes that "auto" chooses, as of knear.choose_index().
_RECALL = 0.95

# Keywords of a search that go to knear.Index.search.
_OPTIONS = ("ef", "probes", "recall", "refine_factor", "threads", "widen")


class KnearVectorStore(VectorStore):
    """Documents with their embeddings, found by knear.

    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> from knear.langchain import KnearVectorStore
    >>> store = KnearVectorStore(DeterministicFakeEmbedding(size=8))
    >>> store.add_texts(["foo", "bar"], [{"n": 1}, {"n": 2}], ids=["a", "b"])
    ['a', 'b']
    >>> [found.page_content for found in store.similarity_search("bar", k=1)]
    ['bar']
    >>> [found.id for found in store.similarity_search("bar", k=2, filter={"n": 1})]
    ['a']
    >>> store.delete(["b"])
    True

    embedding: makes vectors of texts; they are kept as float32.
    factory: the kind of index, as in knear.Index. One that has to learn ("IVF64,Flat", "PQ32")
        learns from the texts of the first call that adds some, which must be enough of them, or
        from those given to train(). "auto": as knear.choose_index() says for `rows` texts that are
        searched for one at a time, or, where `rows` is None, for as many as that call has, by the
        vectors of that call; it stays what was chosen then.
    metric: "cosine", "l2" or "ip".
    dim: columns of the embeddings; None: those of the first.
    recall: that of every search which does not say its own; or
    probes: the same. One of the two is needed where the index has inverted lists
        (knear.Index.search); where "auto" chose these or a graph and neither is given, recall is
        0.95.
    rows: how many texts there will be, for "auto" alone.
    relevance_score_fn: the relevance, from 0 to 1, of a score; None: as said at
        similarity_search_with_score.

    Ids are texts, given or made. Adding a document under an existing id replaces it. What goes
    in and comes out is copied: changing the metadata of a document that was found changes nothing
    in the store.

    Any method may be called from any thread at any time, and sees a change made by another as a
    whole or not at all: searches go side by side, changes one at a time; an embedding is waited for
    by nobody else. A call that fails leaves the store as it was.

    Errors are knear's (InvalidArgument and ShapeMismatch are ValueErrors), or the embedding's own.
    """

    def __init__(
        self,
        embedding: Embeddings,
        *,
        factory: str = "Flat",
        metric: str = "cosine",
        dim: int | None = None,
        recall: float | None = None,
        probes: int | None = None,
        rows: int | None = None,
        relevance_score_fn: Callable[[float], float] | None = None,
    ) -> None:
        Index("Flat", dim=1, metric=metric)  # refuses a metric that there is not
        if metric not in _RELEVANCE:
            there = ", ".join(sorted(_RELEVANCE))
            raise InvalidArgument(f"metric must be one of {there} for texts, but is {metric!r}")
        self.embedding = _embeddings(embedding)
        self._factory, self._metric = _arrays.text("factory", factory), metric
        if rows is not None:
            _at_least_one("rows", rows)
            if factory != "auto":
                raise InvalidArgument(f"rows is {rows}, but only factory 'auto' takes it")
        self._rows = rows
        self._usual = _usual(recall, probes)
        if relevance_score_fn is not None and not callable(relevance_score_fn):
            raise InvalidArgument(
                f"relevance_score_fn must be a function, but is {_kind(relevance_score_fn)}"
            )
        self._relevance_score_fn = relevance_score_fn
        self._lock = ReadersWriter()
        # Each document has a row of the index, whose id is its key. No key is used twice, so a
        # document that replaces another has a new one.
        self._documents: dict[int, Document] = {}
        self._keys: dict[str, int] = {}
        self._dim = None if dim is None else Index("Flat", dim=dim).dim
        self._index: Index | None = None
        if dim is not None and (factory != "auto" or rows is not None):
            self._keep(self._new_index(dim, 0))

    @property
    def embeddings(self) -> Embeddings:
        """What makes vectors of texts."""
        return self.embedding

    @property
    def index(self) -> Index | None:
        """The index, to look at; None before the first embedding, if no `dim` was given. Its ids
        are the store's own. Changing it breaks the store."""
        return self._index

    def __repr__(self) -> str:
        what = f"{self._factory!r}, metric={self._metric!r}"
        return f"<knear.langchain.KnearVectorStore {what}, {len(self._documents)} documents>"

    # Adding.

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str | None] | None = None,
    ) -> list[str]:
        """Embeds the texts and adds them, in the place of documents with these ids. Returns the
        ids: those given, and new ones where `ids` or one of them is None.

        All or none are added. Raises InvalidArgument for other numbers of metadatas or ids than
        texts, for an id that is no text or is given twice, for embeddings that are not finite, and
        where the index has to learn first and the texts are too few; ShapeMismatch for another
        number of columns than before.
        """
        documents = _documents(texts, metadatas, ids)
        if not documents:
            return []
        return self._add(documents, self.embedding.embed_documents(_texts(documents)))

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str | None] | None = None,
    ) -> list[str]:
        """As add_texts, by the embedding's own aembed_documents."""
        documents = _documents(texts, metadatas, ids)
        if not documents:
            return []
        vectors = await self.embedding.aembed_documents(_texts(documents))
        return await run_in_executor(None, self._add, documents, vectors)

    def add_documents(
        self, documents: Iterable[Document], *, ids: list[str | None] | None = None
    ) -> list[str]:
        """As add_texts, of documents: under `ids`, or their own where `ids` is None and one of them
        has one."""
        return super().add_documents(list(documents), **({} if ids is None else {"ids": ids}))

    async def aadd_documents(
        self, documents: Iterable[Document], *, ids: list[str | None] | None = None
    ) -> list[str]:
        """As add_documents, by the embedding's own aembed_documents."""
        words = {} if ids is None else {"ids": ids}
        return await super().aadd_documents(list(documents), **words)

    def add_embeddings(
        self,
        text_embeddings: Iterable[tuple[str, Sequence[float]]],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str | None] | None = None,
    ) -> list[str]:
        """As add_texts, of pairs of a text and its embedding [dim], which is not computed again."""
        pairs = list(text_embeddings)
        try:
            texts, vectors = [text for text, _ in pairs], [vector for _, vector in pairs]
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"text_embeddings must be pairs of a text and its embedding: {error}"
            ) from error
        documents = _documents(texts, metadatas, ids)
        return self._add(documents, vectors) if documents else []

    def train(self, texts: Iterable[str]) -> None:
        """Lets the index learn from these texts, which are not added: before any are, where those
        of the first call would be too few or unlike the rest.

        Raises InvalidArgument where they are too few, for an index that learns nothing ("Flat"),
        and when the store has documents.
        """
        words = _texts(_documents(texts, None, None))
        vectors = _matrix(self.embedding.embed_documents(words), len(words))
        with self._lock.writing():
            if self._documents:
                raise InvalidArgument(
                    f"train() comes before adding, but the store has {len(self._documents)} "
                    "documents"
                )
            index = self._new_index(self._dim_of(vectors), len(words))
            if index.is_trained:
                raise InvalidArgument(f"index {index.factory} learns nothing")
            index.train(vectors)
            self._keep(index)

    def _dim_of(self, vectors: NDArray[np.float32]) -> int:
        """The columns of the index, which those of `vectors` must be."""
        dim = vectors.shape[1]
        known = self._dim if self._index is None else self._index.dim
        if known not in (None, dim):
            raise ShapeMismatch(f"embeddings have {dim} columns, but those of the store {known}")
        return dim

    def _new_index(self, dim: int, rows: int) -> Index:
        """One without rows; `rows`: for how many, where nothing else says that."""
        needs = {}
        if self._factory == "auto":
            recall = self._usual.get("recall", _RECALL)
            needs = {"rows": self._rows or rows, "recall": recall, "batch": 1}
        return Index(self._factory, dim=dim, metric=self._metric, **needs)

    def _keep(self, index: Index) -> None:
        """From now on this index, and what "auto" has chosen, once vectors have decided that."""
        if self._factory == "auto" and index._open_needs is None:
            self._factory = index.factory
            if (index.lists or index.factory.startswith("Graph")) and not self._usual:
                self._usual = {"recall": _RECALL}
        self._index = index

    def _add(self, documents: list[Document], vectors: Any) -> list[str]:
        """Adds documents with their embeddings [n x dim]."""
        matrix = _matrix(vectors, len(documents))
        with self._lock.writing():
            dim, index = self._dim_of(matrix), self._index
            if index is None or not index.is_trained:
                index = self._trained(dim, matrix)
            first = index.next_id
            keys = range(first, first + len(documents))
            index.add(matrix, np.arange(first, first + len(documents)))
            replaced = [self._keys[each.id] for each in documents if each.id in self._keys]
            try:
                if replaced:
                    index.remove(replaced)
            except BaseException:
                index.remove(keys)
                raise
            self._keep(index)
            for key in replaced:
                del self._documents[key]
            self._documents.update(zip(keys, documents, strict=True))
            self._keys.update((each.id, key) for key, each in zip(keys, documents, strict=True))
        return [each.id for each in documents]

    def _trained(self, dim: int, vectors: NDArray[np.float32]) -> Index:
        index = self._new_index(dim, len(vectors))
        if not index.is_trained:
            try:
                index.train(vectors)
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"index {index.factory} learns from the first texts that are added, and could "
                    f"not: {error}; add more at once, or train() it with others"
                ) from error
        return index

    # Documents by their ids.

    def delete(self, ids: Sequence[str] | None = None) -> bool:
        """Removes the documents with these ids, or all of them if `ids` is None; ids that are not
        there are passed over. Returns True."""
        wanted = None if ids is None else _given_ids(ids)
        with self._lock.writing():
            if wanted is None:
                wanted = list(self._keys)
            keys = {each: self._keys[each] for each in wanted if each in self._keys}
            if keys:
                self._index.remove(list(keys.values()))
            for each, key in keys.items():
                del self._documents[key], self._keys[each]
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in that order; ids that are not there are passed over."""
        wanted = _given_ids(ids)
        with self._lock.reading():
            found = [self._documents[self._keys[each]] for each in wanted if each in self._keys]
        return [_copied(each) for each in found]

    # Searches.

    def similarity_search(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[Document]:
        """The k documents most similar to `query`, most similar first; fewer where the store, or
        what the filter allows, has fewer.

        filter: a dict of metadata that a document must have, each value equal; or a function of a
            Document that says whether it may be found, and must not change it. The k are those
            nearest of what it allows, so that there is no `fetch_k` to raise. It is asked of every
            document, while changes of the store wait.
        options: "recall", "probes", "ef", "widen", "refine_factor" and "threads", as in
            knear.Index.search. `widen` is True where the index has inverted lists: a search goes on
            to more of them until it has k documents.

        Raises InvalidArgument for k < 1 and for what knear.Index.search refuses; TypeError for
        other keywords.
        """
        return _without_scores(self.similarity_search_with_score(query, k, filter, **options))

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """As similarity_search, with the score of each document as knear has it: by metric

        - "cosine": 1 - cos, smallest first; its relevance is cos, and 0 where that is negative;
        - "l2": the squared distance d, smallest first; its relevance is 1 / (1 + d);
        - "ip": the product, largest first; its relevance is the product, cut off at 0 and 1, which
          is cos where vectors have length 1. Others need a `relevance_score_fn`.
        """
        _checked(options)
        vector = self.embedding.embed_query(query)
        return self.similarity_search_with_score_by_vector(vector, k, filter, **options)

    def similarity_search_by_vector(
        self, embedding: Sequence[float], k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[Document]:
        """As similarity_search, for an embedding [dim]."""
        found = self.similarity_search_with_score_by_vector(embedding, k, filter, **options)
        return _without_scores(found)

    def similarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """As similarity_search_with_score, for an embedding [dim]."""
        with self._lock.reading():
            found = self._nearest(embedding, k, filter, options)
            hits = [(self._documents[key], score) for key, score in found]
        return [(_copied(document), score) for document, score in hits]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **options: Any,
    ) -> list[Document]:
        """k of the `fetch_k` documents most similar to `query`, chosen one after the other: each
        time the one for which

            lambda_mult * (its cosine to the query)
                - (1 - lambda_mult) * (its largest cosine to one that is chosen already)

        is largest. lambda_mult: from 0, all for diversity, to 1, none. An index of codes alone
        compares what these stand for. Other arguments and errors are those of similarity_search.
        """
        _checked(options)
        vector = self.embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(
            vector, k, fetch_k, lambda_mult, filter, **options
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **options: Any,
    ) -> list[Document]:
        """As max_marginal_relevance_search, for an embedding [dim]."""
        k, weight = _at_least_one("k", k), _arrays.number("lambda_mult", lambda_mult)
        if not 0 <= weight <= 1:
            raise InvalidArgument(f"lambda_mult must be from 0 to 1, but is {weight}")
        fetch_k = _at_least_one("fetch_k", fetch_k)
        with self._lock.reading():
            keys = [key for key, _ in self._nearest(embedding, fetch_k, filter, options)]
            if not keys:
                return []
            vectors = self._index.reconstruct(keys)
            hits = [self._documents[key] for key in keys]
        chosen = _most_relevant(_query(embedding)[0], vectors, k, weight)
        return [_copied(hits[place]) for place in chosen]

    async def asimilarity_search(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[Document]:
        """As similarity_search, by the embedding's own aembed_query."""
        found = await self.asimilarity_search_with_score(query, k, filter, **options)
        return _without_scores(found)

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """As similarity_search_with_score, by the embedding's own aembed_query."""
        _checked(options)
        vector = await self.embedding.aembed_query(query)
        search = self.similarity_search_with_score_by_vector
        return await run_in_executor(None, search, vector, k, filter, **options)

    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **options: Any,
    ) -> list[Document]:
        """As max_marginal_relevance_search, by the embedding's own aembed_query."""
        _checked(options)
        vector = await self.embedding.aembed_query(query)
        search = self.max_marginal_relevance_search_by_vector
        return await run_in_executor(
            None, search, vector, k, fetch_k, lambda_mult, filter, **options
        )

    def _nearest(
        self, embedding: Any, k: Any, filter: Filter | None, options: dict[str, Any]
    ) -> list[tuple[int, float]]:
        """(key, score) of the nearest documents, nearest first."""
        _checked(options)
        k, query = _at_least_one("k", k), _query(embedding)
        allowed = self._allowed(filter)
        most = len(self._documents) if allowed is None else len(allowed)
        if most == 0:
            return []
        self._dim_of(query)
        how = {**({} if {"probes", "recall"} & options.keys() else self._usual), **options}
        if self._index.lists:
            how.setdefault("widen", True)
        found = self._index.search(query, min(k, most), filter=allowed, **how)
        pairs = zip(found.ids[0].tolist(), found.distances[0].tolist(), strict=True)
        return [(key, score) for key, score in pairs if key >= 0]

    def _allowed(self, filter: Filter | None) -> NDArray[np.int64] | None:
        """The keys of the documents that may be found; None for all."""
        if filter is None:
            return None
        if isinstance(filter, Mapping):
            wanted = filter.items()

            def allows(document: Document) -> bool:
                has = document.metadata
                return all(name in has and has[name] == value for name, value in wanted)
        elif callable(filter):
            allows = filter
        else:
            raise InvalidArgument(
                f"filter must be a dict of metadata or a function, but is {_kind(filter)}"
            )
        keys = [key for key, document in self._documents.items() if allows(document)]
        return np.array(keys, np.int64)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return self._relevance_score_fn or _RELEVANCE[self._metric]

    # Stores from texts and from folders.

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str | None] | None = None,
        **arguments: Any,
    ) -> KnearVectorStore:
        """A store with these texts. Arguments beside those of add_texts are the constructor's."""
        store = cls(embedding, **arguments)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str | None] | None = None,
        **arguments: Any,
    ) -> KnearVectorStore:
        """As from_texts, by the embedding's own aembed_documents."""
        store = cls(embedding, **arguments)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def from_embeddings(
        cls,
        text_embeddings: Iterable[tuple[str, Sequence[float]]],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str | None] | None = None,
        **arguments: Any,
    ) -> KnearVectorStore:
        """A store with these pairs of a text and its embedding [dim]."""
        store = cls(embedding, **arguments)
        store.add_embeddings(text_embeddings, metadatas, ids=ids)
        return store

    def save_local(self, folder_path: str) -> None:
        """Writes the store to a folder, which is made where there is none: the index as a .knear
        file, the documents as JSON, one a line. Nothing is pickled. The embedding and
        `relevance_score_fn` are not saved.

        A store that the folder holds already stays what load_local opens until the new one is
        there as a whole, whenever this is cut off. Changes wait while it is written.

        Raises InvalidArgument, naming the document, for metadata that JSON does not hold: anything
        but texts, numbers, bools, None, lists and dicts of these. Tuples come back as lists. Raises
        IoError.
        """
        with self._lock.reading():
            settings = {
                "factory": self._factory,
                "metric": self._metric,
                "recall": self._usual.get("recall"),
                "probes": self._usual.get("probes"),
                "rows": self._rows if self._factory == "auto" else None,
            }
            rows = (
                (key, document.id, document.page_content, document.metadata)
                for key, document in self._documents.items()
            )
            _store_files.save(folder_path, settings, self._index, rows)

    @classmethod
    def load_local(
        cls,
        folder_path: str,
        embedding: Embeddings,
        *,
        relevance_score_fn: Callable[[float], float] | None = None,
    ) -> KnearVectorStore:
        """The store that save_local wrote, with its factory, metric, recall and probes. The vectors
        stay in the file until they are used.

        embedding: the one that the documents were embedded by.

        Raises IoError where there is no such store; CorruptFile where one was cut off or altered.
        """
        _embeddings(embedding)
        settings, index, rows = _store_files.load(folder_path)
        store = cls(embedding, relevance_score_fn=relevance_score_fn, **settings)
        for key, name, text, metadata in rows:
            store._documents[key] = Document(id=name, page_content=text, metadata=metadata)
            store._keys[name] = key
        store._index = index
        return store


def _kind(value: Any) -> str:
    return type(value).__name__


def _embeddings(value: Any) -> Embeddings:
    if not isinstance(value, Embeddings):
        raise InvalidArgument(
            f"embedding must be a langchain_core Embeddings, but is {_kind(value)}"
        )
    return value


def _usual(recall: Any, probes: Any) -> dict[str, Any]:
    """What searches take that say neither, refused where none could."""
    if recall is not None and probes is not None:
        raise InvalidArgument(
            f"probes is {probes} and recall is {recall}, but only one of them can be asked for"
        )
    if recall is not None and not 0 < _arrays.number("recall", recall) <= 1:
        raise InvalidArgument(f"recall must be in (0, 1], but is {recall}")
    if probes is not None:
        _at_least_one("probes", probes)
    usual = {"recall": recall, "probes": probes}
    return {name: value for name, value in usual.items() if value is not None}


def _checked(options: dict[str, Any]) -> None:
    """Refuses keywords that no search has, as Python does."""
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(
                f"a search got an unexpected keyword argument {name!r}; beside k and filter it "
                f"takes {', '.join(_OPTIONS)}"
            )


def _at_least_one(name: str, value: Any) -> int:
    number = _arrays.integer(name, value)
    if number < 1:
        raise InvalidArgument(f"{name} must be at least 1, but is {number}")
    return number


def _listed(name: str, values: Any) -> list[Any]:
    """A list of the values, which must not be a text: that would be one of its letters."""
    if isinstance(values, str):
        raise InvalidArgument(f"{name} must be a list, but is the text {values!r}")
    return list(values)


def _given_ids(ids: Any) -> list[str]:
    ids = _listed("ids", ids)
    for place, each in enumerate(ids):
        if not isinstance(each, str):
            raise InvalidArgument(f"ids must be texts, but ids[{place}] is {each!r}")
    return ids


def _documents(texts: Any, metadatas: Any, ids: Any) -> list[Document]:
    """Copies of what is to be added, each with an id."""
    texts = _listed("texts", texts)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgument(f"texts[{place}] must be a text, but is {text!r}")
    metadatas = [{} for _ in texts] if metadatas is None else _listed("metadatas", metadatas)
    ids = [None for _ in texts] if ids is None else _listed("ids", ids)
    for name, values in (("metadatas", metadatas), ("ids", ids)):
        if len(values) != len(texts):
            raise InvalidArgument(f"{name} are {len(values)}, but texts are {len(texts)}")
    for place, metadata in enumerate(metadatas):
        if not isinstance(metadata, dict):
            raise InvalidArgument(f"metadatas[{place}] must be a dict, but is {metadata!r}")
    given = set()
    for place, each in enumerate(ids):
        if each is not None and not (isinstance(each, str) and each):
            raise InvalidArgument(f"ids[{place}] must be a text, not empty, but is {each!r}")
        if each in given:
            raise InvalidArgument(f"ids hold {each!r} twice")
        if each is not None:
            given.add(each)
    return [
        Document(
            id=str(uuid.uuid4()) if name is None else name,
            page_content=text,
            metadata=copy.deepcopy(metadata),
        )
        for name, text, metadata in zip(ids, texts, metadatas, strict=True)
    ]


def _texts(documents: list[Document]) -> list[str]:
    return [each.page_content for each in documents]


def _copied(document: Document) -> Document:
    return document.model_copy(deep=True)


def _without_scores(found: list[tuple[Document, float]]) -> list[Document]:
    return [document for document, _ in found]


def _matrix(vectors: Any, rows: int) -> NDArray[np.float32]:
    """Embeddings of so many texts as a matrix [rows x dim]."""
    try:
        with np.errstate(over="ignore"):  # infinity is refused later, as NaN is
            matrix = np.asarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"embeddings are no matrix of numbers: {error}") from error
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InvalidArgument(f"embeddings must be a matrix [n x dim], but have {matrix.shape}")
    if len(matrix) != rows:
        raise ShapeMismatch(f"embeddings are {len(matrix)}, but texts are {rows}")
    return np.ascontiguousarray(matrix)


def _query(embedding: Any) -> NDArray[np.float32]:
    """One embedding as a matrix [1 x dim] of finite numbers."""
    matrix = _matrix([embedding], 1)
    if not np.isfinite(matrix).all():
        column = int(np.flatnonzero(~np.isfinite(matrix[0]))[0])
        raise InvalidArgument(
            f"embedding must be finite, but column {column} is {matrix[0, column]}"
        )
    return matrix


def _most_relevant(
    query: NDArray[np.float32], vectors: NDArray[Any], k: int, weight: float
) -> list[int]:
    """Rows of `vectors` [n x dim] by maximal marginal relevance (Carbonell and Goldstein, 1998)."""
    rows = np.vstack([query, vectors]).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    query, units = units[0], units[1:]
    to_query = units @ query
    to_chosen = np.full(len(units), -np.inf)
    chosen = [int(np.argmax(to_query))]
    while len(chosen) < min(k, len(units)):
        to_chosen = np.maximum(to_chosen, units @ units[chosen[-1]])
        marginal = weight * to_query - (1 - weight) * to_chosen
        marginal[chosen] = -np.inf
        chosen.append(int(np.argmax(marginal)))
    return chosen


# The relevance of a score by metric: similarity_search_with_score.
_RELEVANCE: dict[str, Callable[[float], float]] = {
    "cosine": lambda distance: min(1.0, max(0.0, 1.0 - distance)),
    "l2": lambda distance: 1.0 / (1.0 + distance),
    "ip": lambda product: min(1.0, max(0.0, product)),
}
