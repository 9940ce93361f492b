"""The HTML report: time and memory saved, training results, rank of the attention."""
