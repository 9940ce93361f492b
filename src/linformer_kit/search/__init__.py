"""Search by meaning in a folder of documents: an index of passages, built once and kept up."""
