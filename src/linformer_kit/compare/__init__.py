"""Variants of one configuration, trained and set side by side."""
