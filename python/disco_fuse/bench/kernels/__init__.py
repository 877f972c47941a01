"""Benchmarks of the generated kernels: whole steps beside PyTorch, and groups beside a copy."""
