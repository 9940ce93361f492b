"""Scores of rows, and the metrics of each task made of them."""
