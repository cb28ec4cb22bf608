"""Copies of a folder: back-ups, which are of one moment, and folders whose files were copied by other tools."""
