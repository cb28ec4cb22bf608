"""Tables themselves: made, altered, dropped, described; registered and imported on HBase."""
