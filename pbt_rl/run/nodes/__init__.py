"""Population on the nodes of a cluster: the supervisor stays on its machine, packs run on the nodes.

`plan` (pure) assigns packs to places. `backend` declares the backend interface; `ray_backend` implements it and is the
only module that imports Ray. `fleet` manages all packs for the supervisor, and `remote_pack` one of them. `node_worker`
is the node worker, the process beside a pack on its node.
"""
