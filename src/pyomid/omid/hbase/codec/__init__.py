"""The cell formats of HBase and Apache Omid: one cell at a time, and many rows in one compiled pass (`native`)."""
