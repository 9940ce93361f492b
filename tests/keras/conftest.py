"""Keras takes its backend when it is imported first: here torch, unless KERAS_BACKEND says else."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
