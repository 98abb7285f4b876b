"""What scripts take from faiss.contrib: evaluation and a synthetic data set."""
