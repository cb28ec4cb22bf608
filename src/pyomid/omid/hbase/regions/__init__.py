"""Operations on regions (location, reads, writes, administration), each written once as a coroutine."""
