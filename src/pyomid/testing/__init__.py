"""Shipped test tools: golden scripts, simulation, faults, history checker. For pyomid's own tests and for users'."""
