"""What lets FAISS's indexes take tensors, which is not there as a module."""

raise ImportError(
    "knear.faiss.contrib.torch_utils is not there: every call takes tensors of the processor as "
    "they are, torch.from_numpy() makes tensors of what it returns, and knear.knn takes those on a "
    "GPU"
)
