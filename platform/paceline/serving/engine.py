"""An engine behind Ray Serve: the replica's side (`EngineReplica`) and the gateway's side (`ServeEngines`) of one
wire."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from paceline.model.errors import Unreachable
from paceline.serving.contract import (
    BEAT_S,
    Beat,
    Checked,
    Engine,
    EngineOptions,
    EngineRequest,
    Frame,
    Hello,
    ReplicaFacts,
    Tokens,
)
from paceline.serving.models import load_engine
from paceline.telemetry.held_device import held_device


class EngineReplica:
    """One copy of a model. All methods are async and non-blocking, so any Serve transport may run them."""

    def __init__(self, model: str, options: EngineOptions) -> None:
        context = serve.get_replica_context()
        index, uuid = held_device(ray.get_gpu_ids())
        self._facts = ReplicaFacts(
            replica_id=context.replica_tag,
            rank=context.rank.rank,
            pid=os.getpid(),
            node_id=ray.get_runtime_context().get_node_id(),
            device=uuid,
            device_index=index,
        )
        self._engine: Engine = load_engine(model, options)

    async def stream(self, request: EngineRequest) -> AsyncIterator[Frame]:
        """Frames of one attempt, in the order that `serving.contract` gives."""
        yield Hello(self._facts_now(), self._engine.card)
        async for frame in frames_of(self._engine, request):
            yield frame

    async def record_replica_metadata(self) -> dict[str, Any]:
        return {"rank": self._facts.rank}

    async def record_routing_stats(self) -> dict[str, Any]:
        """Ranks are dealt anew after a downscale."""
        return {"rank": self._facts_now().rank}

    def _facts_now(self) -> ReplicaFacts:
        rank = serve.get_replica_context().rank.rank
        if rank != self._facts.rank:
            facts = self._facts
            self._facts = ReplicaFacts(
                facts.replica_id, rank, facts.pid, facts.node_id, facts.device, facts.device_index
            )
        return self._facts


async def frames_of(engine: Engine, request: EngineRequest) -> AsyncGenerator[Frame]:
    """Tokens as they come, several in a frame where the reader is slower than the model; beats in between."""
    pairs: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
    work = asyncio.create_task(_pump(engine, request, pairs))
    resumed_at = len(request.emitted_ids)
    checked = matched = 0
    told = resumed_at == 0
    try:
        while True:
            try:
                batch = [await asyncio.wait_for(pairs.get(), BEAT_S)]
            except TimeoutError:
                yield Beat()
                continue
            while not pairs.empty():
                batch.append(pairs.get_nowait())
            fresh = [pair for pair in batch if pair is not None and pair[0] >= resumed_at]
            again = [pair for pair in batch if pair is not None and pair[0] < resumed_at]
            checked += len(again)
            matched += sum(request.emitted_ids[position] == token_id for position, token_id in again)
            if fresh and not told:
                yield Checked(checked, matched)
                told = True
            if fresh:
                yield Tokens(fresh[0][0], tuple(token_id for _, token_id in fresh))
            if batch[-1] is None:
                await work  # raises what the engine raised
                return
    finally:
        work.cancel()
        await asyncio.wait({work})


async def _pump(engine: Engine, request: EngineRequest, pairs: "asyncio.Queue[tuple[int, int] | None]") -> None:
    try:
        async for pair in engine.generate(request.prompt_ids, request.emitted_ids, request.params, request.seed):
            pairs.put_nowait(pair)
    finally:
        pairs.put_nowait(None)


class ServeEngines:
    """The port `relay.Engines` over a Serve handle."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._stream = handle.options(method_name="stream", stream=True)

    async def attempt(self, request: EngineRequest) -> AsyncGenerator[Frame]:
        """Raises Unreachable where Ray says that the replica is dead, or may be (GCS down, network), or the engine
        failed."""
        handle = self._stream.options(session_id=request.session)
        frames = cast("DeploymentResponseGenerator[Frame]", handle.remote(request))
        try:
            async for frame in frames:
                yield frame
        except RayActorError as error:
            raise Unreachable("PL-NET-106", f"the replica is gone: {type(error).__name__}") from error
        except (RayError, RayServeException) as error:
            raise Unreachable("PL-NET-107", f"the engine failed: {error}") from error
        finally:
            frames.cancel()
