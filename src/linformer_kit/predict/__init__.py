"""Using a trained model: fill a mask, classify, tag, continue a text, translate."""
