"""Models and data for the tutorials and benchmarks; each file imports what it needs."""
