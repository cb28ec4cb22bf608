"""How stores write the watermarks of one range: the newest in the former format, and those kept of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyomid.types import KeyRange, RegionWatermark


def record_fields(records: Sequence[RegionWatermark]) -> dict[str, Any]:
    """The fields for JSON. `records` are of one range and generation, newest first. An older version reads `watermark`
    only: it sees fewer records, never a wrong one."""
    newest = records[0]
    fields: dict[str, Any] = {
        "generation": newest.generation,
        "watermark": newest.watermark,
        "recorded_at_s": newest.recorded_at_s,
    }
    if len(records) > 1:
        fields["earlier"] = [[record.watermark, record.recorded_at_s] for record in records[1:]]
    return fields


def records_of(fields: Mapping[str, Any], table: str, key_range: KeyRange) -> list[RegionWatermark]:
    """Newest first."""
    found = [(fields["watermark"], fields["recorded_at_s"]), *fields.get("earlier", ())]
    return [RegionWatermark(table, fields["generation"], key_range, watermark, at_s) for watermark, at_s in found]
