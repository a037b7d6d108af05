"""Contention: where cores are rare, a turn of the sampler waits for company."""
