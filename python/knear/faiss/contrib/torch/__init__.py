"""FAISS's k-means and quantizers of tensors, which are not there."""

raise ImportError(
    "knear.faiss.contrib.torch is not there; knear.KMeans and knear.ProductQuantizer take tensors "
    "as they are"
)
