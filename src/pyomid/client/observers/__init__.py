"""Who is told what the client does: `observer`, the interface; `metrics` (Prometheus), `spans` (OpenTelemetry)."""
