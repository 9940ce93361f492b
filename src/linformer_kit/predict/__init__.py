"""Using a trained model: fill a mask, classify, go on with a text, translate."""
