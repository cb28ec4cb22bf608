"""The rules of the transaction protocol, pure: what is visible, what conflicts, who may be deleted, what must be
durable before what is sent. May know `types`, `cells`, `ports`, `errors`. Never a socket, thread, clock, random
source, file or logger: decisions that need the outside are generators that yield an effect (`core.effects`) and
are sent its result.
"""
