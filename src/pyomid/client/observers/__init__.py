"""Reports of a client's work: `observer`, the interface; `metrics` (Prometheus), `spans` (OpenTelemetry)."""
