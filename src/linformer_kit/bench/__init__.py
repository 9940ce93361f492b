"""Measurements: run, then records, then tables. Tables are made of records and run no model."""
