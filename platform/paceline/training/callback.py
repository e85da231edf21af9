"""The hook into any Ray Train run on the cluster, through RAY_TRAIN_CALLBACKS: the user's script does not know of it.

In the controller it finds a gang before each (re)start, tells the inventory what the run does, and ends an attempt whose gang must move.
In each worker it paces the steps of simulated devices, and times all steps. It must never be the reason for a run to die: what fails here
is logged, and the run goes on as it would without Paceline.
"""

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import ray
import structlog

from paceline.model.errors import PacelineError
from paceline.model.ids import EventId, JobId
from paceline.model.plan import Grant, Refusal
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate, RankPlace, RunState
from paceline.runtime.settings import PLACEMENT_ACTOR, RAY_NAMESPACE
from paceline.sdk.client import Client
from paceline.training import ray_train
from paceline.training.outbox import Outbox
from paceline.training.pacing import pace_this_worker
from paceline.training.steps import time_this_worker

log = structlog.get_logger()

DEFAULT_MAX_SPREAD: Final = 0.03
"""Healthy devices of one kind lie within a few per cent; twice the noise of a probe is well inside. PACELINE_MAX_SPREAD overrides."""
ASK_AGAIN_S: Final = 2.0
CALL_DEADLINE_S: Final = 300.0
FLUSH_DEADLINE_S: Final = 15.0
STEP_METRICS: Final = ("step", "global_step", "iteration", "training_iteration", "epoch")

P = ParamSpec("P")
R = TypeVar("R")


def fail_open(
    hook: Callable[Concatenate["PacelineCallback", P], R],
) -> Callable[Concatenate["PacelineCallback", P], R | None]:
    """A hook that fails is logged, and the run goes on without what it would have done."""

    @functools.wraps(hook)
    def guarded(self: "PacelineCallback", *args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return hook(self, *args, **kwargs)
        except Exception:  # any error of ours is less bad than ending the user's run
            log.exception("hook failed; the run goes on without it", hook=hook.__name__)
            return None

    return cast("Callable[Concatenate[PacelineCallback, P], R | None]", guarded)


class PacelineCallback(
    ray_train.ControllerCallback, ray_train.WorkerGroupCallback, ray_train.ReportCallback, ray_train.WorkerCallback
):
    """Made in the driver with no arguments, pickled into the controller and into each worker."""

    def __init__(self) -> None:
        self._run = ray_train.Run("", "")
        self._attempt = 0
        self._grant: Grant | None = None
        self._request: GangRequest | None = None
        self._group: Any = None
        self._places: tuple[RankPlace, ...] = ()
        self._latest: CheckpointRecord | None = None
        self._reports = 0

    def __reduce__(self) -> tuple[type["PacelineCallback"], tuple[()]]:
        """A worker gets a new one: what the controller's has gathered (connections, threads, the gang) is the controller's."""
        return type(self), ()

    @property
    def _service(self) -> Any:
        """Looked up each time: after `paceline down` and `up` it is another actor. Raises ValueError where there is none."""
        return ray.get_actor(PLACEMENT_ACTOR, namespace=RAY_NAMESPACE)

    @functools.cached_property
    def _client(self) -> Client:
        address, token = ray.get(self._service.connection.remote(), timeout=60)
        return Client(address, token)

    @functools.cached_property
    def _outbox(self) -> Outbox:
        return Outbox()

    @functools.cached_property
    def _job_id(self) -> JobId:
        context = ray.get_runtime_context()
        return JobId(os.environ.get("RAY_JOB_SUBMISSION_ID") or _submission_id() or context.get_job_id())

    # ── controller ───────────────────────────────────────────────────────────────────────────────────────────────

    @fail_open
    def after_controller_start(self, train_run_context: Any) -> None:
        self._run = ray_train.run_of(train_run_context)
        self._tell_job(RunState.PLACING)

    @fail_open
    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> dict[str, str] | None:
        devices = _gpus_per_worker(scaling_config) * num_workers
        if devices == 0:
            return None  # no whole GPUs are asked for: nothing to choose
        self._attempt += 1
        self._request = GangRequest(self._job_id, self._run.name, self._attempt, devices, _max_spread())
        self._grant = self._find_gang(self._request)
        return {"ray.io/node-id": f"in({','.join(self._grant.node_ids)})"}

    def _find_gang(self, request: GangRequest) -> Grant:
        """Ask until there is a gang. Whoever waits is QUEUED with the reason, never silently PENDING."""
        told = ""
        while True:
            answer = self._ask(request)
            if isinstance(answer, Grant):
                log.info(
                    "gang found", devices=answer.devices, spread=round(answer.plan.spread, 4), reason=answer.plan.reason
                )
                return answer
            if answer.reason != told:
                told = answer.reason
                log.warning("queued", reason=answer.reason, remedy=answer.remedy)
                self._tell_job(RunState.QUEUED, answer.reason, answer.remedy)
            time.sleep(ASK_AGAIN_S)

    def _ask(self, request: GangRequest) -> Grant | Refusal:
        owner = ray.get_runtime_context().get_actor_id()
        try:
            answer: Grant | Refusal = ray.get(self._service.acquire.remote(request, owner), timeout=CALL_DEADLINE_S)
        except (PacelineError, ray.exceptions.RayError) as error:
            return Refusal(
                f"the placement service does not answer: {_first_line(error)}",
                "it restarts by itself; see `paceline status`",
                (),
            )
        return answer

    @fail_open
    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group, self._places = worker_group, ray_train.places_of(worker_group)
        if self._grant is None:
            return
        grant = self._grant
        unfit = ray.get(self._service.confirm.remote(grant.lease_id, self._places), timeout=CALL_DEADLINE_S)
        self._tell_attempt("started", ranks=self._places)
        self._tell_job(RunState.STARTING)
        threading.Thread(target=self._follow, args=(grant,), name="paceline-lease", daemon=True).start()
        if unfit:
            log.warning("the gang got a device that it must not use; it is placed again", devices=unfit)
            ray_train.end_attempt(worker_group, self._places, set())

    @fail_open
    def after_worker_group_training_start(self, worker_group: Any) -> None:
        self._tell_job(RunState.RUNNING)
        if self._latest is not None and self._grant is not None:
            self._tell_attempt("resumed", step=self._latest.step, checkpoint=self._latest.path)

    def _follow(self, grant: Grant) -> None:
        """Wait beside the run for the word that its gang must move; also the lease's sign of life."""
        owner = ray.get_runtime_context().get_actor_id()
        while self._grant is grant:
            try:
                cause = ray.get(self._service.await_move.remote(grant.lease_id, owner), timeout=CALL_DEADLINE_S)
            except (ray.exceptions.RayError, ValueError) as error:
                log.info("placement service is away", error=_first_line(error))
                time.sleep(1)
                continue
            if cause and self._grant is grant:
                self._move(cause)
                return

    @fail_open
    def _move(self, cause: EventId) -> None:
        log.warning("the gang must move: the attempt ends here and goes on from its latest checkpoint", cause=cause)
        self._tell_job(RunState.RECOVERING, "a device of its gang is bad")
        ray_train.end_attempt(self._group, self._places, set())

    @fail_open
    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        self._reports += 1
        if training_report.checkpoint is None or self._request is None:
            return
        numbers = {key: float(value) for key, value in metrics[0].items() if isinstance(value, int | float)}
        record = CheckpointRecord(
            self._request.attempt_id,
            training_report.checkpoint.path,
            _step(numbers, self._reports),
            time.time_ns(),
            numbers,
        )
        self._latest = record
        self._outbox.put(lambda: self._client.checkpoint(record))

    @fail_open
    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        if self._grant is not None:
            self._tell_attempt("ended")
        self._grant, self._group = None, None

    @fail_open
    def after_controller_finish(self, result: Any) -> None:
        failed = getattr(result, "error", None)
        self._end(RunState.FAILED if failed else RunState.SUCCEEDED, _first_line(failed) if failed else "")

    @fail_open
    def before_controller_abort(self) -> None:
        self._end(RunState.CANCELLED, "stopped by its user")

    def _end(self, state: RunState, reason: str) -> None:
        self._tell_job(state, reason)
        if not self._outbox.flush(FLUSH_DEADLINE_S):
            log.warning("the inventory has not heard of the end of this run", state=state)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    @fail_open
    def after_init_train_context(self) -> None:
        pace_this_worker()
        time_this_worker()

    # ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell_job(self, state: RunState, reason: str = "", hint: str = "") -> None:
        update = JobUpdate(self._job_id, self._run.name, state, time.time_ns(), reason, hint, self._run.storage_path)
        self._outbox.put(lambda: self._client.job_update(update))

    def _tell_attempt(self, kind: str, **facts: Any) -> None:
        assert self._grant is not None, "an attempt is told of only while it has a gang"
        assert self._request is not None, "a gang was asked for"
        progress = replace(
            AttemptProgress(self._request.attempt_id, self._grant.lease_id, kind, time.time_ns()), **facts
        )
        self._outbox.put(lambda: self._client.attempt(progress))


def _gpus_per_worker(scaling_config: Any) -> int:
    """Whole GPUs a worker asks for. Fractions share a device and are placed by Ray alone."""
    gpus = float(scaling_config._resources_per_worker_not_none.get("GPU", 0))
    return int(gpus) if gpus == int(gpus) else 0


def _max_spread() -> float:
    text = os.environ.get("PACELINE_MAX_SPREAD", "")
    try:
        value = float(text) if text else DEFAULT_MAX_SPREAD
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        log.error(
            "PACELINE_MAX_SPREAD must be a number in [0, 1); the default is used",
            given=text,
            default=DEFAULT_MAX_SPREAD,
        )
        return DEFAULT_MAX_SPREAD
    return value


def _step(numbers: dict[str, float], reports: int) -> int:
    return next((int(numbers[name]) for name in STEP_METRICS if name in numbers), reports)


def _submission_id() -> str:
    metadata: dict[str, str] = ray.get_runtime_context().worker.core_worker.get_job_config().metadata
    return metadata.get("job_submission_id", "")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [repr(error)])[0]
