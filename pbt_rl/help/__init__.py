"""`pbt-rl train --help`: the usual options, those of what the command line names, or all."""
