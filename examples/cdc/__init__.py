"""Change data of four tables of a shop, landed as one consistent cut.

    python -m examples.cdc [--seconds 120] [--rate 4000] [--kills 3] [--delta]

A shop's database has the tables orders, items, stock and payments; an order changes all four in one transaction.
Debezium publishes each change as an event, in one topic per table, and the limits of each transaction in a topic of its
own. A stream lands the events in four tables of pyomid: each transaction of the shop whole, in the shop's order, once.

    shop.py        generates the events, as files in the layout of Kafka Connect's file sinks
    cut.py         from any events that have arrived: the transactions that are complete, in order
    land.py        the stream's driver; the demo kills it and its workers
    invariants.py  what must hold in every snapshot: stock = bought - sold, paid = sum of the order's items
    delta.py       the same events into four Delta tables, one table after the other
    demo.py        runs all of them; report in build/cdc/report.html
"""
