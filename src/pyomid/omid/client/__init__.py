"""A client's session with the TSO: connections, requests and their retries, leases."""
