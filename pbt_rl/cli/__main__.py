"""`python -m pbt_rl.cli` is `pbt-rl`."""

from pbt_rl.cli import main

main()
