"""A web service and a batch job that share a folder for an hour, under faults: `make soak-service`."""
