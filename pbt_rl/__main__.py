"""`python -m pbt_rl` is `pbt-rl`."""

from pbt_rl.cli import main

main()
