"""langchain_store.py -- a vector store of LangChain that searches by knear.

    pip install ".[langchain]"        # in a clone of knear
    python examples/python/langchain_store.py

It fills a store, asks it in the ways that LangChain's chains and agents do, changes it, saves it
and opens it again. The embedding is that of hashed_words.py, so that nothing is downloaded.
"""

import tempfile

from hashed_words import vector_of
from knear.langchain import KnearVectorStore
from langchain_core.embeddings import Embeddings


class HashedWords(Embeddings):
    def embed_documents(self, texts):
        return [vector_of(text).tolist() for text in texts]

    def embed_query(self, text):
        return vector_of(text).tolist()


notes = {
    "eels": "European eels swim to the Sargasso Sea to spawn, and nobody has seen them do it.",
    "tides": "Tides rise twice a day because the Moon pulls the sea on both sides of the Earth.",
    "bees": "Bees tell the others where flowers are by a dance in the dark of the hive.",
    "swifts": "Swifts sleep, eat and drink in the air, and come down only to nest.",
    "moss": "Moss has no roots: it drinks rain through its leaves.",
    "salmon": "Salmon come back from the sea to spawn in the river where they hatched.",
}
animals = {"eels": "fish", "salmon": "fish", "bees": "insect", "swifts": "bird"}

store = KnearVectorStore.from_texts(
    list(notes.values()),
    HashedWords(),
    [{"kind": animals.get(name, "none")} for name in notes],
    ids=list(notes),
)

question = "Which fish leave the sea to spawn in a river?"
print(question)
for document, distance in store.similarity_search_with_score(question, k=3):
    print(f"  {distance:.3f}  {document.id}: {document.page_content}")

# Of what the filter allows, the nearest: not the nearest of all that happen to pass it.
birds = store.similarity_search(question, k=3, filter={"kind": "bird"})
short = store.similarity_search(question, k=1, filter=lambda note: len(note.page_content) < 60)
print("birds:", [document.id for document in birds], " short:", [note.id for note in short])

# A retriever is what chains take. "mmr" leaves out what says the same again.
retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "lambda_mult": 0.3})
print("diverse:", [document.id for document in retriever.invoke("spawn in the sea")])

# The same id again is a new text for it.
store.add_texts(["Eels were thought to grow out of mud."], [{"kind": "fish"}], ids=["eels"])
store.delete(["moss"])

with tempfile.TemporaryDirectory() as folder:
    store.save_local(folder)
    opened = KnearVectorStore.load_local(folder, HashedWords())
    (found,) = opened.similarity_search("Do they grow out of mud?", k=1)
    print("saved and opened:", found.page_content)

assert [document.id for document in birds] == ["swifts"]
assert [document.id for document in short] == ["moss"]
assert store.similarity_search(question, k=1)[0].id == "salmon"
assert found.id == "eels" and opened.get_by_ids(["moss"]) == []
