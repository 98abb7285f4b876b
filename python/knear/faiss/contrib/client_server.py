"""FAISS's index server, which is not there."""

raise ImportError(
    "knear.faiss.contrib.client_server is not there: knear has no server. A .knear file that "
    "several processes load, knear.Index.load(path), is in memory once"
)
