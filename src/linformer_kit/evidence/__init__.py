"""What was measured: benchmarks, trained models looked into, figures, verdicts and the report."""
