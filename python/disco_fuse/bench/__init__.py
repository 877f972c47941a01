"""Benchmarks of the search on simulated clusters: quality, speed, scaling, trends."""
