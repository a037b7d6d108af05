"""`pbt-rl report`: the history of a run as figures, one HTML page, and CSV files.

    journal.jsonl, event files -> History -+-> figures (PNG) -> report page, live page, TensorBoard
                                           +-> exports (CSV)

Training processes do not import this package. A separate process (`images`) draws the figures for TensorBoard and
`pbt-rl watch`.
"""
