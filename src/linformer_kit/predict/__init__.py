"""Using a trained model: fill a mask, classify, tag, go on with a text, translate."""
