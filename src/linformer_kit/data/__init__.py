"""From texts to batches: files -> records -> tokenizer -> prepared examples -> batches."""
