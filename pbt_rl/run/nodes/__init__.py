"""Population on the nodes of a cluster: the supervisor stays on its machine, packs run on the nodes.

`plan` (pure) assigns packs to places. `engine` declares the backend interface; `ray_engine` implements it and is the
only module that imports Ray. `fleet` manages all packs for the supervisor, and `station` one of them. `host` is the
node worker, the process beside a pack on its node.
"""
