"""Metrics and spans of a client, and the interface that they implement.

from pyomid.observe import Metrics, Spans

db = pyomid.connect("omid:///path/to/folder", observers=[Metrics(), Spans()])
"""

from __future__ import annotations

from pyomid.client.observers.metrics import Metrics
from pyomid.client.observers.observer import Kind, Observer, Operation
from pyomid.client.observers.spans import Spans

__all__ = ["Kind", "Metrics", "Observer", "Operation", "Spans"]
