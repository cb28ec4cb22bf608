"""Test tools for programs over pyomid: golden scripts, simulation, faults, history checker, conformance suites."""
