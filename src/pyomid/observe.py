"""Metrics and spans of a client, and the interface that they implement.

from pyomid.observe import Metrics, Spans

db = pyomid.connect("omid:///path/to/folder", observers=[Metrics(), Spans()])
"""

from __future__ import annotations

from pyomid.client.observers import Kind, Metrics, Observer, Operation, Spans

__all__ = ["Kind", "Metrics", "Observer", "Operation", "Spans"]
