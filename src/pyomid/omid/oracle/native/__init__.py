"""The compiled oracle. It parses, decides and answers the requests of a received chunk in one call."""
