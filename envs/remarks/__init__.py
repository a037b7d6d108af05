"""What an environment does wrong though nothing breaks, and what its author may not have meant."""
