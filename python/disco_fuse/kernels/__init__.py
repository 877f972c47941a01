"""Kernels: facts about operators, and the code that runs them."""
