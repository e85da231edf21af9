"""Each internal symbol of Ray Train that Paceline uses still is what the code takes it for. Breaks first when Ray is upgraded."""

import inspect

import ray
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerCallback,
    WorkerGroupCallback,
)
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2._internal.execution.worker_group.worker import ActorMetadata, RayTrainWorker
from ray.train.v2.api.preemption import PreemptionInfo

from paceline.training import callback
from paceline.training.callback import PacelineCallback


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_pinned_version() -> None:
    assert ray.__version__.startswith("2.60."), (
        "hooks were tried on 2.60: read training/ray_train.py before you raise the pin"
    )


def test_every_hook_of_ours_overrides_one_of_rays() -> None:
    hooks = [
        name
        for name, value in vars(PacelineCallback).items()
        if inspect.isfunction(value) and name.startswith(("on_", "after_", "before_"))
    ]
    assert len(hooks) >= 9
    bases = (ControllerCallback, WorkerGroupCallback, ReportCallback, WorkerCallback)
    for name in hooks:
        assert any(hasattr(base, name) for base in bases), f"Ray Train no longer calls {name}"


def test_hook_signatures() -> None:
    assert parameters(ControllerCallback.on_controller_start_worker_group) == ["self", "scaling_config", "num_workers"]
    assert parameters(ReportCallback.after_report) == ["self", "training_report", "metrics"]
    assert parameters(ControllerCallback.after_controller_start) == ["self", "train_run_context"]
    assert "checkpoint" in parameters(_TrainingReport)


def test_the_selector_of_the_hook_wins_and_is_asked_before_every_start() -> None:
    source = inspect.getsource(TrainController._start_worker_group)
    assert "on_controller_start_worker_group" in source
    assert "label_selector = [selector.copy()" in source


def test_preemption_by_hand() -> None:
    assert parameters(RayTrainWorker.mark_preempt) == ["self", "info"]
    assert parameters(PreemptionInfo) == ["deadline_ms", "preempted_node_to_ranks"]


def test_a_worker_tells_its_node_and_devices() -> None:
    assert {"node_id", "pid", "accelerator_ids"} <= set(parameters(ActorMetadata))


def test_whole_gpus_of_a_scaling_config() -> None:
    assert callback._gpus_per_worker(ScalingConfig(num_workers=2, use_gpu=True)) == 1
    assert callback._gpus_per_worker(ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 4})) == 4
    assert callback._gpus_per_worker(ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})) == 0
    assert callback._gpus_per_worker(ScalingConfig(num_workers=2)) == 0


def test_the_callback_travels_to_controller_and_workers() -> None:
    from ray import cloudpickle

    used = PacelineCallback()
    assert used._outbox.flush(10), "the thread of the outbox runs"
    assert isinstance(cloudpickle.loads(cloudpickle.dumps(used)), PacelineCallback)


def test_what_placement_asks_of_rays_global_state() -> None:
    state = ray._private.state
    assert callable(state.available_resources_per_node)
    assert parameters(type(state.state).actor_table)[1] == "actor_id"
