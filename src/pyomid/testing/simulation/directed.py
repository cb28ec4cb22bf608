"""placeholder"""

from pyomid.testing.simulation.build import Build


def run_directed(name: str, build: Build) -> str | None:
    return None
