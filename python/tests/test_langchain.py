"""knear.langchain: the standard tests of LangChain's vector stores, the answers of brute force, and
what goes wrong."""

import asyncio
import doctest
import inspect
import json
import math
import os
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from conftest import brute_force

langchain_core = pytest.importorskip("langchain_core", reason="needs langchain-core")
pytest.importorskip("langchain_tests", reason="needs langchain-tests")
from knear._readers_writer import ReadersWriter
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from langchain_tests.integration_tests import VectorStoreIntegrationTests

import knear
from knear import _store_files
from knear import langchain as ours

KnearVectorStore = ours.KnearVectorStore
METRICS = ["cosine", "l2", "ip"]

# The suite leaves it to a setting of pytest-asyncio to see that these are tests. anyio, which
# langchain-core brings, needs none.
for each in vars(VectorStoreIntegrationTests).values():
    if inspect.iscoroutinefunction(each):
        pytest.mark.anyio(each)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture(params=METRICS)
    def vectorstore(self, request):
        return KnearVectorStore(self.get_embeddings(), metric=request.param)


class TestStandardOfLists(VectorStoreIntegrationTests):
    """The same of an index that learns, from texts that are not in the store."""

    @pytest.fixture
    def vectorstore(self):
        factory = "IVF4,PQ3x4,RFlat"
        store = KnearVectorStore(self.get_embeddings(), factory=factory, metric="l2", probes=4)
        store.train([f"text {number}" for number in range(200)])
        return store


class Looked(Embeddings):
    """Vectors that the test chose, by their text; counts what it is asked for, and by which way."""

    def __init__(self, vectors):
        self.vectors = dict(vectors)
        self.asked = []

    def embed_documents(self, texts):
        self.asked.append("documents")
        return [self.vectors[text] for text in texts]

    def embed_query(self, text):
        self.asked.append("query")
        return self.vectors[text]

    async def aembed_documents(self, texts):
        self.asked.append("async documents")
        return [self.vectors[text] for text in texts]

    async def aembed_query(self, text):
        self.asked.append("async query")
        return self.vectors[text]


ROWS, DIM = 200, 8


@pytest.fixture
def vectors(rng):
    return rng.standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.fixture
def embedding(vectors):
    return Looked({f"t{row}": vector.tolist() for row, vector in enumerate(vectors)})


def filled(embedding, rows=range(ROWS), **arguments):
    return KnearVectorStore.from_texts(
        [f"t{row}" for row in rows],
        embedding,
        [{"row": row, "odd": bool(row % 2), "of": {"ten": row % 10}} for row in rows],
        ids=[f"id {row}" for row in rows],
        **arguments,
    )


def rows_of(documents):
    return [document.metadata["row"] for document in documents]


def content(store):
    """All that a store holds, to compare before and after."""
    ids = sorted(store._keys)
    keys = [store._keys[each] for each in ids]
    rows = [] if store.index is None else store.index.reconstruct(keys).tolist()
    assert sorted(keys) == ([] if store.index is None else store.index.ids.tolist())
    assert sorted(store._documents) == sorted(keys)
    return store.get_by_ids(ids), rows


@pytest.mark.parametrize("metric", METRICS)
def test_answers_are_those_of_brute_force(vectors, embedding, metric):
    store = filled(embedding, metric=metric)
    distances, ids = brute_force(vectors[:5], vectors, 7, metric)
    for row in range(5):
        found = store.similarity_search_with_score(f"t{row}", 7)
        assert rows_of(document for document, _ in found) == ids[row].tolist()
        np.testing.assert_allclose([score for _, score in found], distances[row], atol=1e-6)
        assert all(document.id == f"id {document.metadata['row']}" for document, _ in found)
        assert store.similarity_search_with_score_by_vector(vectors[row].tolist(), 7) == found
        documents = [document for document, _ in found]
        assert store.similarity_search(f"t{row}", 7) == documents
        assert store.similarity_search_by_vector(vectors[row], 7) == documents
        assert store.as_retriever(search_kwargs={"k": 7}).invoke(f"t{row}") == documents
        assert store.search(f"t{row}", "similarity", k=7) == documents


@pytest.mark.parametrize("metric", METRICS)
def test_filters_come_before_the_k(vectors, embedding, metric):
    store = filled(embedding, metric=metric)
    for filter, rows in (
        ({"odd": True}, range(1, ROWS, 2)),
        ({"odd": True, "of": {"ten": 3}}, range(3, ROWS, 10)),
        ({}, range(ROWS)),
        (lambda document: document.metadata["row"] in (5, 50), [5, 50]),
        (lambda document: document.id == "id 7" and document.page_content == "t7", [7]),
        ({"row": 3, "there is": None}, []),
        (lambda _: False, []),
    ):
        rows = np.array(rows, int)
        _, places = brute_force(vectors[:1], vectors[rows], min(6, len(rows)), metric)
        want = rows[places[0]].tolist() if len(rows) else []
        assert rows_of(store.similarity_search("t0", 6, filter)) == want
        assert rows_of(store.similarity_search("t0", 6, filter=filter)) == want
        retriever = store.as_retriever(search_kwargs={"k": 6, "filter": filter})
        assert rows_of(retriever.invoke("t0")) == want
        found = store.max_marginal_relevance_search("t0", 6, 6, 1.0, filter=filter)
        assert sorted(rows_of(found)) == sorted(want)
    for bad in ("odd", 7, [1, 2]):
        with pytest.raises(knear.InvalidArgument, match="filter must be a dict of metadata or a"):
            store.similarity_search("t0", filter=bad)


@pytest.mark.parametrize("metric", METRICS)
def test_marginal_relevance_is_langchains(vectors, embedding, metric):
    # A query that is no row: beside one, half its cosine less half its cosine is a tie of all.
    store = filled(embedding, rows=range(190), metric=metric)
    chosen = set()
    for weight in (0.0, 0.3, 0.5, 1.0):
        near = rows_of(store.similarity_search("t199", 30))
        want = maximal_marginal_relevance(vectors[199], vectors[near], weight, 8)
        want = [near[place] for place in want]
        found = store.max_marginal_relevance_search("t199", 8, 30, weight)
        assert rows_of(found) == want
        by_vector = store.max_marginal_relevance_search_by_vector(vectors[199], 8, 30, weight)
        assert by_vector == found
        words = {"k": 8, "fetch_k": 30, "lambda_mult": weight}
        retriever = store.as_retriever(search_type="mmr", search_kwargs=words)
        assert retriever.invoke("t199") == found
        chosen.add(tuple(want))
    assert len(chosen) > 2  # the weight matters to these rows
    assert len(store.max_marginal_relevance_search("t199", 50, 6)) == 6
    for words, text in (
        ({"k": 0}, "k must be at least 1, but is 0"),
        ({"fetch_k": 0}, "fetch_k must be at least 1, but is 0"),
        ({"lambda_mult": 1.5}, "lambda_mult must be from 0 to 1, but is 1.5"),
        ({"lambda_mult": math.nan}, "lambda_mult must be from 0 to 1, but is nan"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            store.max_marginal_relevance_search("t199", **words)


def test_relevance_is_between_0_and_1_and_falls_with_the_distance():
    angles = [0, 30, 60, 90, 120, 180]
    circle = {
        f"at {angle}": [math.cos(math.radians(angle)), math.sin(math.radians(angle))]
        for angle in angles
    }
    cosines = np.array([math.cos(math.radians(angle)) for angle in angles])
    wanted = {
        "cosine": np.maximum(cosines, 0),
        "ip": np.clip(cosines, 0, 1),
        "l2": 1 / (1 + 2 - 2 * cosines),
    }
    for metric, want in wanted.items():
        store = KnearVectorStore.from_texts(list(circle), Looked(circle), metric=metric)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = store.similarity_search_with_relevance_scores("at 0", 6)
        assert [document.page_content for document, _ in found] == list(circle)
        np.testing.assert_allclose([score for _, score in found], want, atol=1e-6)
        search = {"score_threshold": float(want[2]) - 1e-4, "k": 6}
        retriever = store.as_retriever(
            search_type="similarity_score_threshold", search_kwargs=search
        )
        assert [each.page_content for each in retriever.invoke("at 0")] == list(circle)[:3]
    store = KnearVectorStore.from_texts(["at 0"], Looked(circle), relevance_score_fn=lambda _: 0.25)
    assert store.similarity_search_with_relevance_scores("at 0")[0][1] == 0.25


def test_an_id_that_is_there_is_replaced(vectors, embedding):
    store = filled(embedding)
    assert store.add_texts(["t150", "t0"], [{"row": -1}, {"row": -2}], ids=["id 3", "new"]) == [
        "id 3",
        "new",
    ]
    assert len(store.index) == ROWS + 1
    (found,) = store.get_by_ids(["id 3"])
    assert found == Document(id="id 3", page_content="t150", metadata={"row": -1})
    assert 3 not in rows_of(store.similarity_search("t3", ROWS + 1))
    assert sorted(rows_of(store.similarity_search("t150", 2))) == [-1, 150]
    # Ids of documents, beside some that have none.
    added = store.add_documents([Document("t1", id="new"), Document("t2")])
    assert added[0] == "new" and len(set(added)) == 2 and len(store.index) == ROWS + 2
    assert store.add_documents([Document("t1", id="not this")], ids=["but this"]) == ["but this"]
    assert store.get_by_ids(["not this"]) == []
    # No document is lost when they come one by one.
    assert len(store.add_documents(Document(text) for text in ("t5", "t6"))) == 2
    coming = (Document(text, id=text) for text in ("t5", "t6"))
    assert asyncio.run(store.aadd_documents(coming)) == ["t5", "t6"]
    with pytest.raises(TypeError, match="colour"):
        store.add_documents([Document("t1")], colour=1)


def test_deleting(embedding):
    store = filled(embedding)
    assert store.delete(["id 0", "none", "id 0", "id 5"]) is True
    assert {0, 5}.isdisjoint(rows_of(store.similarity_search("t0", ROWS)))
    assert len(store.index) == ROWS - 2 and store.get_by_ids(["id 0"]) == []
    assert store.delete([]) is True and len(store.index) == ROWS - 2
    for bad in ("id 1", [1], [None]):
        with pytest.raises(knear.InvalidArgument, match="ids must be"):
            store.delete(bad)
        with pytest.raises(knear.InvalidArgument, match="ids must be"):
            store.get_by_ids(bad)
    assert len(store.index) == ROWS - 2
    assert store.delete() is True
    assert store.similarity_search("t0") == [] and len(store.index) == 0
    store.add_texts(["t4"])
    assert [each.page_content for each in store.similarity_search("t0")] == ["t4"]


def test_what_goes_in_and_comes_out_is_copied(embedding):
    metadata = {"list": [1]}
    document = Document("t0", metadata=metadata)
    store = KnearVectorStore.from_documents([document], embedding)
    metadata["list"].append(2)
    document.metadata["list"].append(2)
    searches = (
        lambda: store.similarity_search("t0")[0],
        lambda: store.max_marginal_relevance_search("t0")[0],
        lambda: store.get_by_ids([store.similarity_search("t0")[0].id])[0],
    )
    for search in searches:
        search().metadata["list"].append(3)
        search().metadata["more"] = 1
        assert search().metadata == {"list": [1]}


def test_what_is_refused_changes_nothing(vectors, embedding):
    store = filled(embedding, rows=range(10))
    embedding.vectors |= {
        "nan": [math.nan] * DIM,
        "infinite": [math.inf] * DIM,
        "large": [1e300] * DIM,
        "short": [1.0] * (DIM - 1),
        "words": ["a"] * DIM,
        "nothing": [],
        "number": 1.0,
    }
    before = content(store)
    for texts, words, kind, text in (
        (["t1", "nan"], {}, knear.InvalidArgument, "must be finite, but row 1 column 0 is nan"),
        (["infinite"], {}, knear.InvalidArgument, "must be finite, but row 0 column 0 is inf"),
        (["large"], {}, knear.InvalidArgument, "must be finite"),
        (["short"], {}, knear.ShapeMismatch, "embeddings have 7 columns, but those of the store 8"),
        (["t1", "short"], {}, knear.InvalidArgument, "embeddings are no matrix of numbers"),
        (["words"], {}, knear.InvalidArgument, "embeddings are no matrix of numbers"),
        (["nothing"], {}, knear.InvalidArgument, r"must be a matrix \[n x dim\], but have \(1, 0"),
        (["number"], {}, knear.InvalidArgument, r"must be a matrix \[n x dim\], but have \(1,\)"),
        (["unknown"], {}, KeyError, "unknown"),
        ("t1", {}, knear.InvalidArgument, "texts must be a list, but is the text 't1'"),
        (["t1", 7], {}, knear.InvalidArgument, r"texts\[1\] must be a text, but is 7"),
        (["t1"], {"metadatas": []}, knear.InvalidArgument, "metadatas are 0, but texts are 1"),
        (["t1"], {"metadatas": [None]}, knear.InvalidArgument, r"metadatas\[0\] must be a dict"),
        (["t1"], {"ids": []}, knear.InvalidArgument, "ids are 0, but texts are 1"),
        (["t1"], {"ids": "a"}, knear.InvalidArgument, "ids must be a list, but is the text 'a'"),
        (["t1"], {"ids": [7]}, knear.InvalidArgument, r"ids\[0\] must be a text, not empty, but"),
        (["t1"], {"ids": [""]}, knear.InvalidArgument, r"ids\[0\] must be a text, not empty, but"),
        (["t1"] * 3, {"ids": ["a", "b", "a"]}, knear.InvalidArgument, "ids hold 'a' twice"),
        (["t1"], {"ids": ["id 1"], "colour": 1}, TypeError, "colour"),
    ):
        with pytest.raises(kind, match=text):
            store.add_texts(texts, **words)
        with pytest.raises(kind, match=text):
            asyncio.run(store.aadd_texts(texts, **words))
        assert content(store) == before
    embedding.embed_documents = lambda texts: [vectors[0]] * (len(texts) + 1)
    with pytest.raises(knear.ShapeMismatch, match="embeddings are 3, but texts are 2"):
        store.add_texts(["a", "b"], ids=["id 1", "id 2"])
    with pytest.raises(knear.ShapeMismatch, match="embeddings are 3, but texts are 2"):
        store.train(["a", "b"])
    with pytest.raises(knear.InvalidArgument, match="before adding, but the store has 10 docu"):
        del embedding.embed_documents
        store.train(["t1", "t2"])
    assert content(store) == before


def test_a_change_that_is_cut_off_is_undone(embedding, monkeypatch):
    store = filled(embedding, rows=range(10))
    before = content(store)
    remove, calls = knear.Index.remove, []

    def interrupted(index, ids):
        calls.append(ids)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(index, ids)

    monkeypatch.setattr(knear.Index, "remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.add_texts(["t15", "t16"], ids=["id 5", "new"])
    assert len(calls) == 2 and content(store) == before


def test_searches_that_are_refused(embedding):
    empty = KnearVectorStore(embedding)
    store = filled(embedding)
    embedding.vectors |= {"nan": [math.nan] * DIM, "short": [1.0] * 3}
    for each in (empty, store):
        for query, words, kind, text in (
            ("t0", {"k": 0}, knear.InvalidArgument, "k must be at least 1, but is 0"),
            ("t0", {"k": -1}, knear.InvalidArgument, "k must be at least 1, but is -1"),
            ("t0", {"k": "4"}, knear.InvalidArgument, "k must be a whole number"),
            ("nan", {}, knear.InvalidArgument, "embedding must be finite, but column 0 is nan"),
            ("t0", {"fetch_k": 20}, TypeError, "unexpected keyword argument 'fetch_k'"),
            ("unknown", {}, KeyError, "unknown"),
        ):
            with pytest.raises(kind, match=text):
                each.similarity_search(query, **words)
            with pytest.raises(kind, match=text):
                asyncio.run(each.asimilarity_search(query, **words))
    with pytest.raises(TypeError, match="unexpected keyword argument 'scores'"):
        store.max_marginal_relevance_search("t0", scores=True)
    with pytest.raises(knear.ShapeMismatch, match="have 3 columns, but those of the store 8"):
        store.similarity_search("short")
    with pytest.raises(knear.InvalidArgument, match="probes is 3, but there are no inverted lists"):
        store.similarity_search("t0", probes=3)
    assert len(store.similarity_search("t0", k=10**9)) == ROWS
    assert empty.similarity_search("t0") == empty.max_marginal_relevance_search("t0") == []
    assert empty.get_by_ids(["a"]) == [] and empty.delete() and empty.add_texts([]) == []
    assert empty.add_documents([]) == [] and empty.index is None
    for words, text in (
        ({"metric": "l3"}, "metric must be one of l2, ip, cosine, l1, hamming, but is 'l3'"),
        ({"metric": "l1"}, "metric must be one of cosine, ip, l2 for texts, but is 'l1'"),
        ({"factory": 7}, "factory must be text"),
        ({"factory": "no index", "dim": 4}, "factory 'no index'"),
        ({"dim": 0}, "dim"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            KnearVectorStore(embedding, **words)
    for words, text in (
        ({"rows": 5}, "rows is 5, but only factory 'auto' takes it"),
        ({"factory": "auto", "rows": 0}, "rows must be at least 1, but is 0"),
        ({"recall": 0.9, "probes": 2}, "probes is 2 and recall is 0.9, but only one of them"),
        ({"recall": 2}, r"recall must be in \(0, 1\], but is 2"),
        ({"recall": "most"}, "recall must be a number"),
        ({"probes": 0}, "probes must be at least 1, but is 0"),
        ({"probes": "few"}, "probes must be a whole number"),
        ({"relevance_score_fn": 7}, "relevance_score_fn must be a function, but is int"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            KnearVectorStore(embedding, **words)
    with pytest.raises(knear.InvalidArgument, match="index Flat learns nothing"):
        empty.train(["t0", "t1"])
    with pytest.raises(knear.InvalidArgument, match="embedding must be a langchain_core Emb"):
        KnearVectorStore(lambda text: [1.0])
    with pytest.raises(TypeError, match="colour"):
        KnearVectorStore.from_texts(["t0"], embedding, colour=1)


def test_an_index_that_learns(vectors, embedding):
    with pytest.raises(knear.InvalidArgument, match="IVF16,Flat learns from the first texts.*: "):
        filled(embedding, rows=range(10), factory="IVF16,Flat")
    store = KnearVectorStore(embedding, factory="IVF16,Flat", metric="l2", dim=DIM)
    with pytest.raises(knear.InvalidArgument, match="add more at once, or train"):
        store.add_texts(["t0"])
    assert store.similarity_search("t0", probes=1) == [] and not store.index.is_trained
    store.train([f"t{row}" for row in range(ROWS)])
    assert store.add_texts(["t0"]) and store.index.is_trained

    store = filled(embedding, factory="IVF16,Flat", metric="l2")
    with pytest.raises(knear.InvalidArgument, match="neither probes nor recall is given"):
        store.similarity_search("t0")
    _, ids = brute_force(vectors[:20], vectors, 5, "l2")
    for row in range(20):
        assert rows_of(store.similarity_search(f"t{row}", 5, recall=1)) == ids[row].tolist()
        assert rows_of(store.similarity_search(f"t{row}", 5, probes=16)) == ids[row].tolist()
    few = [rows_of(store.similarity_search(f"t{row}", 5, probes=1)) for row in range(20)]
    assert few != ids.tolist()
    # As many as are asked for, though the nearest list has fewer of them.
    assert len(store.similarity_search("t0", 150, probes=1)) == 150
    assert len(store.similarity_search("t0", 9, {"of": {"ten": 4}}, probes=1)) == 9
    assert len(store.similarity_search("t0", 150, probes=1, widen=False)) < 150
    usual = filled(embedding, factory="IVF16,Flat", metric="l2", probes=1)
    assert [rows_of(usual.similarity_search(f"t{row}", 5)) for row in range(20)] == few
    assert rows_of(usual.similarity_search("t1", 5, recall=1)) == ids[1].tolist()
    mean = filled(embedding, factory="IVF16,Flat", metric="l2", recall=1)
    assert [rows_of(mean.similarity_search(f"t{row}", 5)) for row in range(20)] == ids.tolist()


def test_codes_alone_serve_every_search(embedding):
    store = filled(embedding, factory="PQ8x4", metric="l2")
    assert len(store.similarity_search("t0", 5)) == 5
    assert len(store.max_marginal_relevance_search("t0", 5, 10)) == 5


def test_embeddings_that_are_there_are_not_made_again(vectors, embedding):
    pairs = [(f"t{row}", vectors[row]) for row in range(10)]
    store = KnearVectorStore.from_embeddings(pairs, embedding, metric="l2", ids=list("abcdefghij"))
    assert store.add_embeddings(iter([("more", vectors[20])]), [{"row": 20}], ids=["k"]) == ["k"]
    assert store.add_embeddings([]) == []
    for bad in ([("a",)], [7], [("a", [1.0] * DIM, "more")]):
        with pytest.raises(knear.InvalidArgument, match="text_embeddings must be pairs of a text"):
            store.add_embeddings(bad)
    assert embedding.asked == []
    assert [each.id for each in store.similarity_search_by_vector(vectors[20], 1)] == ["k"]


def test_asynchronous_forms_ask_the_embedding_so(vectors, embedding):
    texts = [f"t{row}" for row in range(20)]

    async def run():
        store = await KnearVectorStore.afrom_texts(texts, embedding, metric="l2")
        await store.aadd_documents([Document("t20", id="a")])
        with_score = await store.asimilarity_search_with_score("t3", 4)
        documents = [document for document, _ in with_score]
        assert await store.asimilarity_search("t3", k=4) == documents
        assert await store.asimilarity_search_by_vector(vectors[3], k=4) == documents
        assert await store.as_retriever(search_kwargs={"k": 4}).ainvoke("t3") == documents
        far = await store.amax_marginal_relevance_search("t3", 4, lambda_mult=0.1)
        relevant = await store.asimilarity_search_with_relevance_scores("t3", 4)
        assert [document for document, _ in relevant] == documents
        assert len(await store.aget_by_ids(["a", "b"])) == 1
        assert await store.adelete(["a"]) is True
        return store, with_score, far

    store, with_score, far = asyncio.run(run())
    assert set(embedding.asked) == {"async documents", "async query"}
    assert len(store.index) == 20
    assert store.similarity_search_with_score("t3", 4) == with_score
    store.add_texts(["t20"], ids=["a"])
    assert store.max_marginal_relevance_search("t3", 4, lambda_mult=0.1) == far


@pytest.mark.parametrize("factory", ["Flat", "IVF4,SQ8"])
def test_what_was_saved_is_loaded(embedding, tmp_path, factory):
    usual = {"probes": 2} if factory != "Flat" else {}
    store = filled(embedding, metric="l2", factory=factory, **usual)
    store.delete(["id 4"])
    more = {"ünïcode 字": [1, 2.5, None, True, {"a": "\u2028\n"}], "pair": (1, 2)}
    store.add_texts(["t1"], [{"row": 1000, **more}], ids=["名前\n"])
    folder = tmp_path / "new" / "folder"
    store.save_local(str(folder))
    loaded = KnearVectorStore.load_local(folder, embedding)
    (document,) = loaded.get_by_ids(["名前\n"])
    assert document.metadata == {"row": 1000, **more, "pair": [1, 2]}
    for query in ("t1", "t9"):
        want = rows_of(store.similarity_search(query, 9))
        assert rows_of(loaded.similarity_search(query, 9)) == want
    # It goes on as the first one would.
    for each in (store, loaded):
        each.add_texts(["t7", "t8"], [{"row": -7}, {"row": -8}], ids=["id 3", "b"])
        each.delete(["id 9"])
    a, b = content(store), content(loaded)
    assert a[1] == b[1] and [each.id for each in a[0]] == [each.id for each in b[0]]
    assert loaded._metric == "l2" and loaded._factory == factory and loaded._usual == usual
    loaded.save_local(folder)  # over what it is read from
    assert content(loaded) == b
    assert content(KnearVectorStore.load_local(folder, embedding)) == b
    assert len(os.listdir(folder)) == 3


def test_auto_is_what_suits_the_texts(embedding, vectors, tmp_path, monkeypatch):
    few = filled(embedding, factory="auto")  # as many as the first call has
    assert few._factory == few.index.factory == "Flat" and few._usual == {}
    asked = []

    def choose(rows, dim, metric, **needs):
        asked.append((rows, dim, metric, needs["recall"], needs["batch"]))
        return knear.IndexChoice("IVF8,Flat", "it suits", 0)

    monkeypatch.setattr("knear._choice.choose_index", choose)
    store = KnearVectorStore(embedding, factory="auto", rows=10_000, metric="l2")
    store.save_local(tmp_path / "empty")
    store = KnearVectorStore.load_local(tmp_path / "empty", embedding)
    with pytest.raises(knear.InvalidArgument, match="index IVF8,Flat learns from the first texts"):
        store.add_texts(["t0"])
    assert store.index is None and store._factory == "auto" and store._usual == {}
    store.add_texts([f"t{row}" for row in range(ROWS)])
    assert store._factory == "IVF8,Flat" and store._usual == {"recall": 0.95}
    assert set(asked) == {(10_000, DIM, "l2", 0.95, 1)}
    assert store.similarity_search("t3", 1)[0].page_content == "t3"
    store.save_local(tmp_path / "store")
    again = KnearVectorStore.load_local(tmp_path / "store", embedding)
    assert again._factory == "IVF8,Flat" and again._usual == {"recall": 0.95}
    assert filled(embedding, factory="auto", probes=3)._usual == {"probes": 3}
    assert filled(embedding, factory="auto", recall=0.9, metric="ip")._usual == {"recall": 0.9}
    assert asked[-2:] == [(ROWS, DIM, "cosine", 0.95, 1), (ROWS, DIM, "ip", 0.9, 1)]
    at_once = KnearVectorStore(embedding, factory="auto", rows=500, dim=DIM)
    assert at_once.index.factory == "IVF8,Flat" and not at_once.index.is_trained
    later = KnearVectorStore(embedding, factory="auto", dim=DIM + 1)
    with pytest.raises(knear.ShapeMismatch, match="have 8 columns, but those of the store 9"):
        later.add_texts(["t0"])
    trained = KnearVectorStore(embedding, factory="auto", rows=500)
    trained.train([f"t{row}" for row in range(ROWS)])
    assert trained._factory == "IVF8,Flat" and trained.add_texts(["t0"])


def test_empty_stores_are_saved_too(embedding, tmp_path):
    KnearVectorStore(embedding, metric="ip").save_local(tmp_path / "a")
    store = KnearVectorStore.load_local(tmp_path / "a", embedding)
    assert store.index is None and store._metric == "ip" and store.similarity_search("t0") == []
    store = KnearVectorStore(embedding, factory="IVF4,Flat", dim=DIM, probes=4)
    store.save_local(tmp_path / "b")
    store = KnearVectorStore.load_local(tmp_path / "b", embedding)
    store.train([f"t{row}" for row in range(ROWS)])
    store.save_local(tmp_path / "b")
    store = KnearVectorStore.load_local(tmp_path / "b", embedding)
    store.add_texts(["t0"])
    assert len(store.similarity_search("t0")) == 1


def test_metadata_that_json_does_not_hold_is_named(embedding, tmp_path):
    store = filled(embedding, rows=range(3))
    store.save_local(tmp_path)
    names = sorted(os.listdir(tmp_path))
    deep = []
    for _ in range(200):
        deep = [deep]
    for bad, text in (
        ({"a": [1, {2, 3}]}, r"metadata\['a'\]\[1\] is a set"),
        ({"a": np.float32(1)}, r"metadata\['a'\] is a float32"),
        ({"a": {1: 2}}, r"metadata\['a'\] has the key 1, which is no text"),
        ({"a": b"bytes"}, r"metadata\['a'\] is a bytes"),
        ({"a": deep}, "nested more than 100 deep"),
        ({"a": 10**5000}, "4300 digits"),
    ):
        store.add_texts(["t5"], [bad], ids=["bad"])
        with pytest.raises(knear.InvalidArgument, match=f"document 'bad' cannot be saved.*{text}"):
            store.save_local(tmp_path)
        assert sorted(os.listdir(tmp_path)) == names
    assert len(KnearVectorStore.load_local(tmp_path, embedding).index) == 3


def test_folders_that_are_no_store_are_named(embedding, tmp_path):
    load = KnearVectorStore.load_local
    with pytest.raises(knear.IoError, match="store.json: No such file"):
        load(tmp_path, embedding)
    for bad, text in (
        (7, "path must be text, bytes or a Path, but is 7"),
        ("a\0b", "a NUL inside"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            load(bad, embedding)
        with pytest.raises(knear.InvalidArgument, match=text):
            KnearVectorStore(embedding).save_local(bad)
    KnearVectorStore(embedding).save_local(os.fsencode(tmp_path / "bytes"))
    load(os.fsencode(tmp_path / "bytes"), embedding)
    (tmp_path / "file").write_text("")
    with pytest.raises(knear.IoError, match="file"):
        filled(embedding, rows=range(3)).save_local(tmp_path / "file")
    folder = tmp_path / "store"
    filled(embedding, rows=range(5)).save_local(folder)
    with pytest.raises(knear.InvalidArgument, match="embedding must be a langchain_core Emb"):
        load(folder, None)
    manifest = json.loads((folder / "store.json").read_text())
    good = {path.name: path.read_bytes() for path in folder.iterdir()}

    def refused(kind=knear.CorruptFile, text=None):
        with pytest.raises(kind, match=text) as caught:
            load(folder, embedding)
        assert "\n" not in str(caught.value)
        for name, data in good.items():
            (folder / name).write_bytes(data)
        assert len(load(folder, embedding).index) == 5

    for name, data in good.items():
        for end in (0, 1, len(data) // 2, len(data) - 1):
            (folder / name).write_bytes(data[:end])
            refused()
        for place in range(0, len(data), max(1, len(data) // 60)):
            altered = bytearray(data)
            altered[place] ^= 0x55
            (folder / name).write_bytes(altered)
            try:
                load(folder, embedding)
            except knear.Error:
                refused((knear.CorruptFile, knear.IoError))
            else:  # the padding of a .knear file, a space of the manifest, its numbers
                assert not name.endswith(".jsonl")
        (folder / name).write_bytes(data)
        (folder / name).unlink()
        refused(knear.IoError, f"{name}'?: No such file")
    for change in (
        {"format": "another"},
        {"metric": "l2"},
        {"metric": "l1"},
        {"metric": ["l2"]},
        {"factory": None},
        {"probes": True},
        {"recall": "1"},
        {"count": 4},
        {"count": None},
        {"index": None},
        {"index": "../store/" + manifest["index"]},
        {"index": manifest["documents"]},
        {"documents": "/etc/passwd"},
        {"documents": 7},
        {"sha256": "0" * 64},
    ):
        (folder / "store.json").write_text(json.dumps({**manifest, **change}))
        refused()
    for text in ("[]", "null", "{", "[" * 100000, '"\ud800"', "7" * 5000):
        (folder / "store.json").write_text(text, errors="surrogatepass")
        refused()

    # Documents whose sum is right, and which are not those of the index, or none.
    from hashlib import sha256

    lines = good[manifest["documents"]].splitlines()
    first = json.loads(lines[0])
    for change in (
        {"key": 77},
        {"key": -1},
        {"key": 2**70},
        {"key": 1},
        {"key": "0"},
        {"key": True},
        {"id": "id 1"},
        {"id": None},
        {"text": 7},
        {"metadata": []},
        {"more": 1},
    ):
        data = b"\n".join([json.dumps({**first, **change}).encode(), *lines[1:]])
        (folder / manifest["documents"]).write_bytes(data)
        digest = sha256(data).hexdigest()
        (folder / "store.json").write_text(json.dumps({**manifest, "sha256": digest}))
        refused()


SAVES = """
import sys
from langchain_core.embeddings import DeterministicFakeEmbedding
from knear.langchain import KnearVectorStore

store = KnearVectorStore(DeterministicFakeEmbedding(size=4))
print("ready", flush=True)
for number in range(100000):
    store.add_texts([f"t{number}"], ids=[str(number)])
    store.save_local(sys.argv[1])
"""


def test_a_save_that_is_killed_leaves_a_store(tmp_path, rng):
    embedding = DeterministicFakeEmbedding(size=4)
    KnearVectorStore(embedding).save_local(tmp_path)
    for _ in range(6):
        saving = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert saving.stdout.readline() == b"ready\n"
        try:
            # The old folder can be loaded at any time during a save.
            for _ in range(20):
                check(KnearVectorStore.load_local(tmp_path, embedding))
            with pytest.raises(subprocess.TimeoutExpired):
                saving.wait(rng.uniform(0, 0.05))
        finally:
            saving.send_signal(signal.SIGKILL)
            saving.wait()
            saving.stdout.close()
        check(KnearVectorStore.load_local(tmp_path, embedding))
    KnearVectorStore(embedding).save_local(tmp_path)  # and what they left is gone
    assert len([name for name in os.listdir(tmp_path) if "documents-" in name]) == 1
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".knear")]) == 0


def check(store):
    """A store of the texts t0, t1, ... as SAVES has it after any of its steps."""
    size = 0 if store.index is None else len(store.index)
    assert [each.id for each in store.get_by_ids([str(n) for n in range(size)])] == [
        str(number) for number in range(size)
    ]


@pytest.mark.parametrize("step", ["documents", "index", "manifest", "folder"])
def test_a_save_that_fails_leaves_the_old_store(embedding, tmp_path, monkeypatch, step):
    store = filled(embedding, rows=range(5))
    store.save_local(tmp_path)
    store.delete(["id 0"])

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    calls = []
    fsync = os.fsync

    def full_at_last(descriptor):
        calls.append(descriptor)
        if len(calls) == 4:
            full()
        fsync(descriptor)

    if step == "index":
        monkeypatch.setattr(knear.Index, "save", full)
    elif step == "folder":  # after the new manifest is there: documents, manifest, folder before
        monkeypatch.setattr(os, "fsync", full_at_last)
    else:
        monkeypatch.setattr(os, {"documents": "fsync", "manifest": "replace"}[step], full)
    with pytest.raises(knear.IoError, match="No space left"):
        store.save_local(tmp_path)
    monkeypatch.undo()
    rows = rows_of(KnearVectorStore.load_local(tmp_path, embedding).similarity_search("t1", 9))
    assert len(rows) == (4 if step == "folder" else 5)
    store.save_local(tmp_path)
    assert sorted(name.partition("-")[0] for name in os.listdir(tmp_path)) == [
        "documents",
        "index",
        "store.json",
    ]


def test_a_store_that_is_saved_while_it_is_loaded_is_the_new_one(embedding, tmp_path, monkeypatch):
    store = filled(embedding, rows=range(5))
    store.save_local(tmp_path)
    load, calls = _store_files._load, []

    def overtaken(folder, manifest):
        calls.append(manifest["documents"])
        if len(calls) <= 2:  # the files that this manifest names are gone then
            store.delete([f"id {len(calls)}"])
            store.save_local(tmp_path)
        return load(folder, manifest)

    monkeypatch.setattr(_store_files, "_load", overtaken)
    assert len(KnearVectorStore.load_local(tmp_path, embedding).index) == 3
    assert len(set(calls)) == 3


def test_saves_to_one_folder_wait_for_each_other(embedding, tmp_path):
    stores = [filled(embedding, rows=range(size)) for size in (3, 4, 5)]
    errors = []

    def saving(store):
        try:
            for _ in range(15):
                store.save_local(tmp_path)
                assert len(KnearVectorStore.load_local(tmp_path, embedding).index) in (3, 4, 5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=saving, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    assert len(os.listdir(tmp_path)) == 3


def test_readers_who_never_pause_let_a_writer_in():
    lock, order = ReadersWriter(), []

    def writes():
        with lock.writing():
            order.append("writer")

    def reads():
        with lock.reading():
            order.append("reader")

    with lock.reading():
        writer = threading.Thread(target=writes)
        writer.start()
        while not lock._waiting:
            writer.join(0.001)
        reader = threading.Thread(target=reads)
        reader.start()
        reader.join(0.05)
        with lock.reading():  # this one reads already
            assert order == []
    writer.join(30)
    reader.join(30)
    assert order == ["writer", "reader"]


@pytest.mark.parametrize("held_by", ["writer", "reader", "own reading", "own writing"])
def test_a_child_process_waits_for_no_thread_of_its_parent(held_by):
    lock, inside, go_on = ReadersWriter(), threading.Event(), threading.Event()
    hold = lock.writing if "writ" in held_by else lock.reading

    def holds():
        with hold():
            inside.set()
            assert go_on.wait(60)

    def child():
        if held_by == "own reading":
            with lock.reading():
                pass
            assert lock._readers == 1
        elif held_by == "own writing":
            assert lock._writing == threading.get_ident()
        else:
            with lock.writing():
                pass
            with lock.reading():
                pass

    def forked():
        if (pid := os.fork()) == 0:
            signal.alarm(20)  # ends a child that waits
            try:
                child()
                os._exit(0)
            finally:
                os._exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    if held_by.startswith("own"):
        with hold():
            assert forked() == 0
    else:
        thread = threading.Thread(target=holds)
        thread.start()
        assert inside.wait(30)
        try:
            assert forked() == 0
        finally:
            go_on.set()
            thread.join()
    with lock.writing():
        pass


def test_threads_see_whole_changes(rng):
    """Writers replace all of their documents at once; no search sees some of them replaced, none
    twice, and none whose text is not that of its vector."""
    embedding = DeterministicFakeEmbedding(size=6)
    store = KnearVectorStore(embedding, metric="l2")
    names = {writer: [f"{writer} {number}" for number in range(8)] for writer in range(3)}
    rounds, stop, errors = 25, threading.Event(), []

    def put(writer, turn):
        texts = [f"{name} at {turn}" for name in names[writer]]
        metadatas = [{"writer": writer, "turn": turn} for _ in texts]
        store.add_texts(texts, metadatas, ids=names[writer])

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as error:
                errors.append(error)
                stop.set()

        return threading.Thread(target=run)

    for writer in names:
        put(writer, 0)

    def writing(writer):
        def work():
            for turn in range(1, rounds):
                put(writer, turn)
                if writer == 2 and turn % 5 == 0:
                    store.delete(names[2])

        return guarded(work)

    searches = []

    def searching():
        while not stop.is_set():
            found = store.similarity_search_with_score(f"0 0 at {rounds - 1}", 100)
            ids = [document.id for document, _ in found]
            assert len(set(ids)) == len(ids)
            turns = {}
            for document, score in found:
                turns.setdefault(document.metadata["writer"], []).append(document.metadata["turn"])
                vector = np.float32(embedding.embed_query(document.page_content))
                query = np.float32(embedding.embed_query(f"0 0 at {rounds - 1}"))
                assert math.isclose(score, ((vector - query) ** 2).sum(), rel_tol=1e-5)
            for writer, seen in turns.items():
                assert len(seen) == 8 and len(set(seen)) == 1, (writer, seen)
            assert {0, 1} <= turns.keys()
            only = store.similarity_search("x", 100, {"writer": 1})
            assert len(only) == 8 and len({each.metadata["turn"] for each in only}) == 1
            searches.append(1)

    writers = [writing(writer) for writer in names]
    readers = [guarded(searching) for _ in range(3)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join(120)
    stop.set()
    for thread in readers:
        thread.join(120)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in (*readers, *writers)) and searches
    assert {each.metadata["turn"] for each in store.similarity_search("x", 8, {"writer": 0})} == {
        rounds - 1
    }
    content(store)


def test_a_filter_may_read_the_store_and_not_change_it(embedding):
    store = filled(embedding, rows=range(10))
    started = threading.Event()
    adding = threading.Thread(target=lambda: (started.wait(), store.add_texts(["t11"])))
    adding.start()

    def reads(document):
        started.set()
        adding.join(0.05)  # it waits by now
        return store.get_by_ids([document.id]) == [document]

    assert len(store.similarity_search("t0", 20, reads)) == 10
    adding.join(30)
    assert not adding.is_alive() and len(store.index) == 11
    with pytest.raises(knear.InvalidArgument, match="a filter must not change the store"):
        store.similarity_search("t0", 3, lambda _: store.delete(["id 0"]))
    with pytest.raises(ZeroDivisionError):
        store.similarity_search("t0", 3, lambda _: 1 / 0)
    store.add_texts(["t12"])  # nothing holds the lock
    assert len(store.index) == 12


def test_it_finds_what_langchains_own_store_finds(embedding):
    own = InMemoryVectorStore(embedding)
    documents = [Document(f"t{row}", id=str(row), metadata={"row": row}) for row in range(50)]
    own.add_documents(documents)
    store = KnearVectorStore.from_documents(documents, embedding)
    for row in range(60, 70):
        assert store.similarity_search(f"t{row}", 6) == own.similarity_search(f"t{row}", 6)


def test_langchain_is_imported_with_its_module_alone():
    code = "import sys, knear; assert not {'langchain_core', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; sys.modules['langchain_core'] = None; import knear.langchain"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install ".[langchain]" in a clone of knear' in done.stderr


def test_the_examples_of_the_docstrings_run():
    (test,) = doctest.DocTestFinder(recurse=False).find(KnearVectorStore, globs={})
    assert test.examples
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.summarize().failed == 0
    for name, what in vars(ours.KnearVectorStore).items():
        if callable(what) and not name.startswith("_"):
            assert what.__doc__, name
