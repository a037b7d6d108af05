"""Population on the nodes of a cluster. Packs run on the nodes, and the supervisor on the machine of the command.

- `places`: places of packs, and the plan of a run
- `backend`: interface of a cluster
- `ray_backend`: implementation with Ray; the only module that imports Ray
- `node_fleet`: interface of the supervisor to all packs
- `remote_pack`: state of one pack, on the supervisor's machine
- `node_worker`: process that runs a pack on a node
"""
