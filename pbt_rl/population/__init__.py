"""Population of a run: members, slots, ratings, and the dispatch of changes to the learners.

Imports controllers, actors and display. No processes, files or torch.
"""
