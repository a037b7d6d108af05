"""Population Based Bandits: explore rules that learn from the whole population (PB2, PB2-Mix)."""
