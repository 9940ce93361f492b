"""The trainer and what it is built from: used by training, evaluation and comparisons."""
