"""Training on `transformers.Trainer`: models, run folders, checkpoints that survive anything."""
