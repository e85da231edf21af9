"""Serve's request router between gateway and engines: sessions stick to a slot, blamed replicas come last.

The order itself is `serving.ring.route`; this class only reads Serve's replicas. Serve pickles the class by value, so
it keeps no state in this module: what the gateway knows (whom to avoid) and wants to know (who was preferred) travels
in the `EngineRequest`, which is the same object on both sides of this call.
"""

from typing import Final

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from paceline.serving.contract import EngineRequest
from paceline.serving.ring import route

ROUTING_TASKS: Final = 10_000
"""Serve's own cap, min(50, 2 × replicas), lets a session with many waiting requests hold up every other session: a
request of another session, for an idle replica, waited for 0.8 to 1.0 s."""


class SessionRouter(RequestRouter):
    @property
    def max_num_routing_tasks(self) -> int:
        return ROUTING_TASKS

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica a rank: Serve goes on to the next rank where one is full or does not answer."""
        if (
            pending_request is None
            or not pending_request.args
            or not isinstance(pending_request.args[0], EngineRequest)
        ):
            return [candidate_replicas]  # calls that belong to no session
        pending_request.routing_context.should_backoff = True  # all ranks at once: sleep before asking again
        request = pending_request.args[0]
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        slots = [(name, slot_of(replica)) for name, replica in by_id.items()]
        order = route(request.session, slots, request.avoid)
        request.trail[:] = order
        return [[by_id[name]] for name in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """Only told once the replica accepted."""
        if pending_request.args and isinstance(pending_request.args[0], EngineRequest):
            pending_request.args[0].trail[:] = [replica_id.unique_id]


def slot_of(replica: RunningReplica) -> int:
    """The rank that the replica reports now, else the one it started with."""
    live = replica.routing_stats.get("rank")
    return int(live if live is not None else replica.replica_metadata.get("rank", 0))
