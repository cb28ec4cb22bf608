"""Kernels: how a function is compiled, where the result is kept and under what name, and when it is loaded."""
