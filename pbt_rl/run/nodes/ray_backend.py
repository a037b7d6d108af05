"""Ray backend. Node workers are Ray actors, calls are Ray tasks, and states are in Ray's object store.

The fleet copies states out of each answer, because Ray's memory is lost with its node.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray import exceptions
from ray._private import state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.run.nodes.backend import Node, Place, Request, WorkerDied, WorkerFailed, WorkerUnavailable
from pbt_rl.run.nodes.node_worker import NodeWorker

NODE_DIED = "its node has died"
"""Part of Ray's error message if a node worker dies with its node."""
CAUSE = "The actor died because"
"""First words of the cause in Ray's error message, after the description of the node worker."""


class RayBackend:
    """Ray cluster.

    address: address of a running cluster. None: start a cluster on this machine, which `close` stops.
    If this process is already connected to a cluster, the existing connection is used, and `close` keeps it.
    Raises ConfigError if there is no cluster at the address.
    """

    def __init__(self, address: str | None) -> None:
        self._own = not ray.is_initialized()
        if self._own:
            try:
                ray.init(address or "local", logging_level="CRITICAL", log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"--nodes ray{f':{address}' if address else ''}: no Ray cluster could be reached: {error}"
                ) from error
        self._worker = ray.remote(max_restarts=0, max_task_retries=0)(NodeWorker)

    def nodes(self) -> Mapping[str, Node]:
        leaving = ray_state.state.get_draining_nodes()
        found = {}
        for node in ray.nodes():
            if node["Alive"]:
                has, key = node["Resources"], node["NodeID"]
                name = f"{node['NodeManagerHostname']} ({key[:8]})"
                found[key] = Node(name, has.get("CPU", 0.0), int(has.get("GPU", 0)), key in leaving)
        return found

    def start(self, place: Place) -> Any:
        return self._worker.options(
            num_cpus=place.cpus,
            num_gpus=1 if place.gpu else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
        ).remote()

    def call(self, worker: Any, request: Request) -> Any:
        return worker.execute.remote(request)

    def wait(self, calls: Collection[Any], timeout_seconds: float) -> list[Any]:
        if not calls:
            time.sleep(timeout_seconds)
            return []
        asked = [*calls]
        ready: list[Any] = ray.wait(asked, num_returns=1, timeout=timeout_seconds)[0]
        if ready:
            ready = ray.wait(asked, num_returns=len(asked), timeout=0)[0]
        return ready

    def result(self, call: Any) -> Any:
        try:
            return ray.get(call)
        except exceptions.RayTaskError as error:
            cause = error.cause
            text = str(cause) if isinstance(cause, ConfigError | EnvSetupError) else str(error)
            raise WorkerFailed(text, user_error=isinstance(cause, ConfigError | EnvSetupError)) from error
        except (exceptions.ActorUnavailableError, exceptions.ObjectLostError) as error:
            raise WorkerUnavailable(str(error)) from error
        except (exceptions.RayActorError, exceptions.ActorUnschedulableError) as error:
            text = " ".join(line.strip() for line in str(error).splitlines())
            gone = getattr(error, "preempted", False) or NODE_DIED in text
            raise WorkerDied(text[max(0, text.find(CAUSE)) :], node_gone=gone) from error

    def end(self, workers: Collection[Any], timeout_seconds: float) -> None:
        if timeout_seconds > 0 and workers:
            ray.wait(
                [worker.close.remote() for worker in workers],
                num_returns=len(workers),
                timeout=timeout_seconds,
            )
        for worker in workers:
            with contextlib.suppress(exceptions.RayError):
                ray.kill(worker)

    def close(self) -> None:
        if self._own:
            ray.shutdown()
