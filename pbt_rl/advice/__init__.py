"""What the user of a run may not have meant: said of its plan, before it starts, and while it trains.

estimate, memory   the memory that it takes, against what host and devices have
files              the files that it opens
plan               settings that defeat their purpose
show               the page of `--show`
remarks            what goes wrong unseen
"""
