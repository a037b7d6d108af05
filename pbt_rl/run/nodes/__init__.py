"""A population over the nodes of a cluster: the supervisor stays where it is, packs run where there is room.

`train` is the entry, with `--nodes` or without. `plan` (pure) makes packs of a cluster's places. `engine` says what a
cluster must be able to do; `ray_engine` does it, and is the only module that imports Ray. `fleet` is all packs, as the
supervisor uses them, and `station` one of them; `host` is the process beside a pack, on its node.
"""
