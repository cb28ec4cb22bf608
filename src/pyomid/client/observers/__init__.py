"""What a client reports of its work: `observer`, the interface; `metrics` (Prometheus), `spans` (OpenTelemetry)."""
