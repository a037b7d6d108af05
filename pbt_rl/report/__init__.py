"""`pbt-rl report`: the history of a run as figures, one HTML page, and files for other programs.

    journal.jsonl, event files -> History -+-> figures, cost... -> PNG -> page (HTML), live page, TensorBoard
                                           +-> exports (CSV)

A training run does not import this package: a separate process (`images`) draws the figures for TensorBoard.
"""
