"""Measuring time and memory, and the records of measurements. Imports no other room."""
