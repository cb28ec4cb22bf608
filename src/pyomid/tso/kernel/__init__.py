"""The compiled batch decision: every request of a received chunk parsed and decided in one call.

The rules are those of `core.oracle` and `core.windows`, and the bytes those of `wire`; tests hold the two against
each other. What is rare (handshake, retries, fences, branches, leases, tables not seen yet, anything malformed) the
kernel hands back, frame by frame, to the plain machine. May touch `core` and `wire`; never a socket, clock or store.
"""
