"""The files of a run on disk: what it wrote, whether it is complete, who uses it."""
