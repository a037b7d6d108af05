"""Population of a run: members, slots, ratings, and the dispatch of changes to the learners.

The modules start no processes, and use neither files nor torch. `matchups/against.py` is an exception: it plays the
games of `pbt-rl eval --against`.
"""
