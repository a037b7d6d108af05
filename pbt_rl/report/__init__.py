"""`pbt-rl report`: the history of a run as figures, one HTML page, and files for other programs.

    journal.jsonl -> History -+-> figures, cost... -> PNG -> page (HTML), TensorBoard
                              +-> exports (CSV)

A run that trains imports nothing from here: a process of its own (`images`) draws the figures for TensorBoard.
"""
