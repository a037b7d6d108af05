"""Population of a run: members, slots, ratings, and the dispatch of changes to the learners.

Imports controllers, actors and the views of display; no processes, files or torch.
"""
