"""datasets_column.py -- the nearest examples of a Hugging Face dataset, found by knear.

    pip install ".[datasets]"        # in a clone of knear
    python examples/python/datasets_column.py

A column of vectors is indexed, the dataset's own methods ask for neighbours, and the index is saved
beside it. The vectors are those of hashed_words.py, and the dataset is made here, so that nothing
is downloaded.
"""

import tempfile
from pathlib import Path

import datasets
import knear.datasets
from hashed_words import DIM, vector_of

datasets.disable_progress_bars()

tasks = [("sort", "a list"), ("reverse", "a text"), ("count", "the words of a text")]
tasks += [("find", "the largest number"), ("merge", "two sorted lists"), ("split", "a text")]
languages = ["Python", "Rust", "Haskell"]
rows = [
    {"question": f"How do I {verb} {what} in {language}?", "language": language}
    for verb, what in tasks
    for language in languages
]
features = datasets.Features(
    {
        "question": datasets.Value("string"),
        "language": datasets.Value("string"),
        "embedding": datasets.List(datasets.Value("float32"), length=DIM),
    }
)
dataset = datasets.Dataset.from_list(
    [{**row, "embedding": vector_of(row["question"])} for row in rows], features=features
)

knear.datasets.add_index(dataset, "embedding", metric="cosine")

query = vector_of("Haskell: merge lists that are sorted")
scores, examples = dataset.get_nearest_examples("embedding", query, k=3)
for score, question in zip(scores, examples["question"], strict=True):
    print(f"{score:.3f}  {question}")

# Keywords go on to knear: here the rows that may be found.
rust = [row for row, language in enumerate(dataset["language"]) if language == "Rust"]
_, of_rust = dataset.get_nearest_examples("embedding", query, k=1, filter=rust)
print("in Rust:", of_rust["question"][0])

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "embedding.knear"
    knear.datasets.save_index(dataset, "embedding", file)
    dataset.drop_index("embedding")
    dataset = dataset.with_format("numpy")
    knear.datasets.load_index(dataset, "embedding", file)
    found = dataset.get_nearest_examples_batch("embedding", dataset["embedding"][:4], k=1)
    own = [examples["question"][0] for examples in found.total_examples]
    print("each is its own neighbour:", own == list(dataset["question"][:4]))

assert examples["question"][0] == "How do I merge two sorted lists in Haskell?"
assert of_rust["question"][0] == "How do I merge two sorted lists in Rust?"
assert own == list(dataset["question"][:4])
