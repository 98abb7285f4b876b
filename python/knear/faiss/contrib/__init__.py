"""What scripts take from faiss.contrib: data sets, evaluation, searches of blocks, k-means in
parts, tools for lists, transforms and strings of index_factory.

The modules take all they need from knear.faiss, so that they run under the name faiss.contrib, too.
"""
