"""Population on the nodes of a cluster. Packs run on the nodes, and the supervisor on its own machine.

- `plan`: places of packs (pure functions)
- `backend`: interface of a cluster
- `ray_backend`: implementation with Ray; the only module that imports Ray
- `fleet`: all packs, as the supervisor uses them
- `remote_pack`: one pack, on the supervisor's machine
- `node_worker`: process that runs a pack on a node
"""
