"""Operations on regions: location, reads, writes and administration, each once as a generator."""
