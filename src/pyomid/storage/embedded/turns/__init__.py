"""The order of writers, among threads and among processes."""
