"""The compiled oracle: the requests of a received chunk are parsed, decided and answered in one call."""
