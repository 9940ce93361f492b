"""Benchmarks: measure cells, write records, show tables. Tables and charts never run a model."""
