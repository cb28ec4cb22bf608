"""Apache Omid's and HBase's cell formats, one cell at a time and (`native`) many rows in one compiled pass."""
