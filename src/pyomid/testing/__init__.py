"""Test tools for users: golden scripts and their stages, history recorder and checker, conformance suites of stores."""
