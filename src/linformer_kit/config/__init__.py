"""The configuration of a run: typed, strict, one YAML file and overrides from the command line."""
