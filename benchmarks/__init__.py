"""Measurements outside the package: against other packages, of this machine, of training."""
