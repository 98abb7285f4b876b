"""FAISS's calls over sockets, which are not there."""

raise ImportError(
    "knear.faiss.contrib.rpc is not there: knear has no server; multiprocessing.connection sends "
    "objects of Python"
)
