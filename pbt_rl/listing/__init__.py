"""`pbt-rl runs`: a table of the runs in a folder, from their files."""
