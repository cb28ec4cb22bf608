"""Apache Omid's and HBase's bytes, one cell at a time and (`native_*`) many rows in one compiled pass."""
