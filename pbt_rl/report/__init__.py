"""`pbt-rl report`: a run's journal -> tables -> figures, one page, files for other programs.

    journal.jsonl -> read.Record -+-> figures, searches, importance -> PNG -> page (HTML), TensorBoard
                                  +-> exports (CSV, DOT, Newick)

Nothing here is imported while a run trains: the pictures for TensorBoard are drawn by a process of their own.
"""
