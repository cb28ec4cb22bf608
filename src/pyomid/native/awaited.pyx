"""What is awaited as itself, without a call in Python."""


cdef class Awaited:
    """Base of what a coroutine awaits to hand itself to its driver, and to get the driver's answer."""

    def __await__(self):
        return (yield self)


cdef class Nothing:
    """Awaited without a wait."""

    def __await__(self):
        return iter(())
