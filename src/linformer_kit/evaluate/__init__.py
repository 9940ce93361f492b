"""How good a model is: per-row scores, metrics of each task, translations with their signatures."""
