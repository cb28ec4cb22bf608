"""Base classes of awaitables, which run no Python code when they are awaited."""


cdef class Awaited:
    """Base class of effects: a coroutine that awaits an effect hands it to its driver, and gets the driver's result."""

    def __await__(self):
        return (yield self)


cdef class Nothing:
    """An awaitable that is done at once."""

    def __await__(self):
        return iter(())
