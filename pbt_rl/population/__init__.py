"""Population of a run: members, slots, ratings, and the dispatch of changes to the learners.

Most modules import only controllers, actors, display and plan, but no processes, files or torch. `matchups/against.py`
is an exception: it plays the games of `pbt-rl eval --against`.
"""
