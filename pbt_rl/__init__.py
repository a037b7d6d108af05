"""Train a population of reinforcement-learning agents on one machine.

Importing this package must stay cheap and free of torch: the actor processes import it.
"""

__version__ = "0.2.0"
