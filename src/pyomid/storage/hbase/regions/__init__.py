"""Operations on regions: where they are, reads, writes and administration, each once as a generator."""
