"""Learner: process that runs inference and learns, for all policies on one device (a pack).

    main thread      sampler, messages, reports           waits for the actors' eventfd or the supervisor's socket
    trainer thread   learning and commands (async only)   waits for full rollouts or a command

In async mode on a CPU with packing `loop`, the main thread can run commands during an optimiser step, and between two
policies of an inference batch.

The modes sync and serial have a single thread, which samples a batch, learns, and resumes sampling. In serial mode this
thread is the supervisor's thread, and the loop is in run/serial.py.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import assert_never

import numpy as np
import torch

from pbt_rl.actors.mailbox import Mailbox
from pbt_rl.actors.messages import (
    Acknowledgement,
    EvaluateMember,
    FromLearner,
    LearnerReady,
    LearnerReport,
    LearnerSaved,
    Load,
    MemberStats,
    PauseTraining,
    Save,
    Saved,
    SaveLearner,
    SetValues,
    StopLearner,
    ToLearner,
    TrainUntil,
)
from pbt_rl.actors.shared_tables import ShapingTable
from pbt_rl.actors.state_pool import StatePool
from pbt_rl.algos.algorithm import UpdateSettings
from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.replay import Replay
from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.learner.build import (
    LearnerSetup,
    build_pack,
    initialised_net,
    network_errors,
    rollout_shape,
    update_settings,
)
from pbt_rl.learner.continuation import Continuation
from pbt_rl.learner.cuda.acceleration import Acceleration
from pbt_rl.learner.cuda.streams import streams_of
from pbt_rl.learner.gpu import out_of_memory, prepare, ran_out
from pbt_rl.learner.pack_members import PackMembers
from pbt_rl.learner.shared import SharedState
from pbt_rl.learner.simulators.simulator_sampler import (
    AnySampler,
    DeviceShaping,
    SimulatorSampler,
    SlotShaping,
)
from pbt_rl.learner.trainer import Trainer
from pbt_rl.processes.child import ChildFailed, begin_child, send_failure
from pbt_rl.processes.polling import AdaptivePoller, Heartbeat, mail_check

WINDOW_SECONDS = 1.0
CONTENDED = 0.1
"""Cores count as contended if the runnable main thread waits for a core in more than this fraction of the time. With
actors and learner on two busy cores, the fraction was 0.19 to 0.47."""


def seconds_waited(thread: int) -> float | None:
    """Return the total seconds in which a runnable thread waited for a core, or None if unavailable.

    thread: native id of a thread of this process. Source: second number of schedstat (Linux,
    Documentation/scheduler/sched-stats.rst).
    """
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Contention:
    """Detector of CPU contention for the thread that creates the detector.

    waited: returns the total seconds in which a thread waited for a core; argument: native thread id.
    clock: returns the present time in seconds.
    """

    def __init__(
        self,
        waited: Callable[[int], float | None] = seconds_waited,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waited, self._clock, self._thread = waited, clock, threading.get_native_id()
        self._began, self._before = clock(), waited(self._thread)
        self._contended = False

    def __call__(self) -> bool:
        """Return True if the thread waited for a core in more than the fraction CONTENDED of the last complete window.

        A window takes at least WINDOW_SECONDS. False before the end of the first window.
        """
        now = self._clock()
        if now - self._began >= WINDOW_SECONDS:
            waited = self._waited(self._thread)
            if waited is not None and self._before is not None:
                self._contended = waited - self._before > CONTENDED * (now - self._began)
            self._began, self._before = now, waited
        return self._contended


class TrainingClock:
    """Clock of the training seconds of the run. A tick adds at most PAUSE_SECONDS, because a suspended process does not
    train.

    before: training seconds of the run before this learner started. clock: returns the present time in seconds.
    """

    PAUSE_SECONDS = 60.0

    def __init__(self, before: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = before, clock
        self._ticked: float | None = None

    def tick(self, *, trains: bool) -> None:
        """Add the time since the last tick. trains: True after sampling has started. Earlier time is not added."""
        now = self._clock()
        if self._ticked is not None:
            self.seconds += min(now - self._ticked, self.PAUSE_SECONDS)
        self._ticked = now if trains else None


REPORT_SECONDS = 0.5
SWITCH_SECONDS = 1e-4
END_SECONDS = 1.5
"""Seconds to wait for the end of the trainer thread. After 3 s the supervisor would kill the learner."""
Command = Load | Save | SaveLearner | SetValues | EvaluateMember


class Learner:
    """Pack with sampler and trainer, controlled by the supervisor's messages.

    The constructor sends `LearnerReady` at its end. Raises ConfigError if network or GPU cannot be used, and
    EnvSetupError if a device simulator cannot be constructed.

    connection: connection to the supervisor. In serial mode: a queue in this process, with the same methods.
    """

    def __init__(
        self, setup: LearnerSetup, connection: Connection[FromLearner | ChildFailed, ToLearner]
    ) -> None:
        self._setup, self._connection = setup, connection
        self._has_mail = mail_check(connection)
        self._send_lock = threading.Lock()  # both threads send
        self._heartbeat = Heartbeat(setup.heartbeat_fd)
        config, spec, plan = setup.config, setup.spec, setup.plan
        self._on_policy = config.mode != "async"
        self._threads = plan.threads
        self._trainer_thread: threading.Thread | None = None
        self.stopped = self.paused = False
        self.clock = TrainingClock(setup.seconds)
        self._limits: dict[int, int] = {}
        """Member index -> number of steps after which a report is sent, because the supervisor must then decide."""
        self._next_report = time.monotonic()
        self._waiting_seconds = 0.0
        self._reported: dict[str, float] = {}

        # The order matters: threads and device, pack, shared state, sampler, trainer, CUDA graphs.
        threads = plan.threads if self._on_policy else max(1, plan.threads // (3 if plan.parts == 1 else 4))
        torch.set_num_threads(threads)
        torch.get_num_threads()  # without this call, threads that compute parts of a minibatch would change the number
        prepare(torch.device(plan.device), reproducible=config.mode == "serial")
        self.acceleration = Acceleration()
        self.pack, about_packing = self._make_pack()
        loads = [load for load in setup.slots if load is not None]
        slot_members = [None if load is None else load.member for load in setup.slots]
        generations = {load.member: load.generation for load in loads if load.member is not None}
        self.shared = SharedState.new(tuple(range(config.members)), slot_members, generations)
        self._table = ShapingTable.map(tuple(spec.shaping), plan.slots, setup.shaping_fd)
        settings = update_settings(config, spec)
        self.sampler, shaping = self._make_sampler(settings.distribution)
        self.trainer = self._make_trainer(settings, shaping)
        self.trainer.members.place_first(loads)
        about = about_packing, self.acceleration.record(self.sampler, self.trainer)
        self._continuation = Continuation(self.pack, self.shared, self.sampler, self.trainer, shaping)
        if setup.continued is not None:
            self.trainer.learned = self._continuation.restore(setup.continued)
        self._edits_itself = not self._on_policy and self.trainer.editable_meanwhile
        """True if the main thread runs commands during optimiser steps."""
        if self._edits_itself:
            self.sampler.between_policies = self._listen
        self.pack.streams.wait_for_work()
        self._heartbeat.beat_main()
        self.send(LearnerReady("; ".join(filter(None, about))))

    def _make_pack(self) -> tuple[Pack, str]:
        """Build the pack with initialised weights. Return the pack and a log line about the packing."""
        setup, config, device = self._setup, self._setup.config, torch.device(self._setup.plan.device)
        values = [setup.unheld_values if load is None else load.values for load in setup.slots]
        slot_members = [None if load is None else load.member for load in setup.slots]
        packing, about = self.acceleration.packing(setup, values, self._connection)
        streams = streams_of(device, threads=config.mode == "async")
        parts = (config, setup.spec, setup.plan, values, config.seed, slot_members, packing)
        pack = build_pack(*parts, streams=streams)
        gc.collect()  # free the pack's template networks, which are large reference cycles
        pack.idle[:] = [load is None for load in setup.slots]
        return pack, about

    def _make_trainer(self, settings: UpdateSettings, shaping: SlotShaping) -> Trainer:
        """Create the trainer, with members and replay memory."""
        setup, config, spec, plan = self._setup, self._setup.config, self._setup.spec, self._setup.plan
        members = PackMembers(
            self.pack,
            self.shared,
            shaping,
            StatePool(setup.layout, setup.pool_fd),
            partial(initialised_net, config, spec, config.seed),
            spec.frame_skip,
        )
        rollouts = rollout_shape(self.pack, spec, config.learner.rollout, plan.rows)
        auxiliary = config.algorithm.auxiliary
        return Trainer(
            self.pack,
            self.shared,
            settings,
            plan.vector_envs_per_batch,
            config.learner.max_policy_lag,
            members,
            setup.seed + 2,
            self._learning_rate_factor,
            self._beat,
            None if auxiliary is None else Replay(auxiliary.replay, rollouts, plan.vector_envs),
            self.acceleration.stepping(),
        )

    def _make_sampler(self, distribution: Distribution) -> tuple[AnySampler, SlotShaping]:
        """Create the sampler (of mailboxes, or of a device simulator), and the table of the slots' shaping."""
        setup, config, spec, plan = self._setup, self._setup.config, self._setup.spec, self._setup.plan
        table, wakes = self._table, setup.wake_fds
        boxes = [
            (Mailbox(spec, plan.rows, fd), wake) for fd, wake in zip(setup.mailbox_fds, wakes, strict=True)
        ]
        self.acceleration.prepare(self.pack.device, [box.memory for box, _ in boxes])
        if spec.simulator:
            on_device = DeviceShaping(table, plan.slots, self.pack.device)
            parts = (self.pack, self.shared, setup, on_device, distribution)
            return SimulatorSampler(*parts, self._heartbeat.beat_main, self._give_up), on_device
        sampler = self.acceleration.sampler(on_policy=self._on_policy)(
            self.pack,
            self.shared,
            spec,
            boxes,
            distribution,
            config.learner.rollout,
            0 if self._on_policy else 2 * plan.vector_envs_per_batch,
            setup.seed + 1,
            on_policy=self._on_policy,
            frames=table.frames,
            contended=None if self._on_policy or plan.device != "cpu" else Contention(),
        )
        return sampler, table

    def _beat(self, busy: bool) -> None:
        """Record a heartbeat of the trainer thread. busy: the trainer has further work to do."""
        self._heartbeat.beat_trainer(busy)
        if self._on_policy:
            self._heartbeat.beat_main()

    def _learning_rate_factor(self) -> float | torch.Tensor:
        """Return the learning rate schedule's factor of each slot (a tensor [P slots]), or 1 for all slots.

        Schedule `linear` returns the remaining fraction of the frames or of the time, whichever is smaller:

            1 - max(frames since the member's weights were initialised / schedule_frames,
                    training seconds of the run / train_for_seconds)

        schedule_frames is train_for_frames, or the length of the training in a search (see `Config`).
        """
        config = self._setup.config
        if config.learner.lr_schedule != "linear":
            return 1.0
        steps = self.shared.sampling.steps - self.trainer.members.fresh_steps
        frames_P = steps[self.shared.pack.member] * self._setup.spec.frame_skip
        share_P = frames_P / self._setup.schedule_frames
        if config.train_for_seconds:
            share_P = np.maximum(share_P, self.clock.seconds / config.train_for_seconds)
        return torch.from_numpy((1.0 - share_P).clip(0.0, 1.0)).float().to(self.pack.device)

    def _expect_frames(self) -> None:
        """If the run has a time limit, write the estimated frames of each member at this limit to `budget_frames`."""
        config = self._setup.config
        share = self.clock.seconds / config.train_for_seconds if config.train_for_seconds else 0.0
        if share > 0:
            expected_P = np.ceil(self._table.frames / share).clip(1, self._setup.full_frames)
            self._table.budget_frames[:] = expected_P

    def _give_up(self, text: str) -> None:
        """Send a user error, and end this process. Another thread calls this if the main thread hangs in a simulator.

        In serial mode, do nothing, because this process is the supervisor.
        """
        if isinstance(self._connection, Connection):  # in serial mode this process is the supervisor
            self.send(ChildFailed(text, user_error=True))
            os._exit(1)

    def close(self) -> None:
        """Release resources that would outlive this object. The end of the process releases them, too."""
        self.acceleration.close()
        self.sampler.close()

    # -- loops ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run as a child process until the supervisor sends StopLearner."""
        if not self._on_policy:
            # By default the trainer could wait 5 ms for the interpreter lock after each long call, because
            # inference makes many short calls and takes the lock again first.
            sys.setswitchinterval(SWITCH_SECONDS)
            self._trainer_thread = threading.Thread(target=self._train, daemon=True)
            self._trainer_thread.start()
        listener = AdaptivePoller(self._setup.ready_fd, self._connection.fileno())
        while not self.stopped:
            self._heartbeat.beat_main()
            if self.iterate():
                continue
            began = time.monotonic()
            timeout = self._next_report - began
            if timeout <= 0:  # in sync mode with members, reports are sent after updates only
                timeout = REPORT_SECONDS
            for fd in listener.wait(timeout * 1000, spin=not self.trainer.learning):
                if fd == self._setup.ready_fd:
                    os.eventfd_read(fd)
            self._waiting_seconds += time.monotonic() - began

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of the trainer thread, if any. Return False if it takes longer than the timeout."""
        if self._trainer_thread is None:
            return True
        with self.trainer.wake:
            self.trainer.wake.notify()
        self._trainer_thread.join(timeout_seconds)
        return not self._trainer_thread.is_alive()

    @network_errors()
    def iterate(self) -> bool:
        """Do all work that is possible now. Return True if there was any work.

        In the modes sync and serial, a call that receives messages only handles these messages. Decisions are therefore
        applied before the next step. A serial run needs this order to resume bit for bit.

        Raises ConfigError for errors of custom modules, and for exits in custom modules or losses.
        """
        heard = self._listen()
        self.clock.tick(trains=self.sampler.has_stepped)
        if self._on_policy:
            return self._iterate_on_policy(heard)
        busy = not self.paused and self.sampler.run_inference()
        if self.trainer.has_batch:
            with self.trainer.wake:
                self.trainer.wake.notify()
        if self._limits:
            self._report_limits()
        if time.monotonic() >= self._next_report:
            self.send_report()
        return busy or heard

    def _iterate_on_policy(self, heard: bool) -> bool:
        self.trainer.run_commands()
        if heard or self.paused:
            return heard
        held = self.holds_members
        busy = self.trainer.learned and held
        if busy:
            self.resume()
        busy = self.sampler.run_inference() or busy
        while self.trainer.has_batch:
            self.trainer.learn()
            self.send_report()
            busy = True
        if not held and time.monotonic() >= self._next_report:
            self.send_report()
        return busy

    @property
    def holds_members(self) -> bool:
        """True if any slot has a member."""
        return any(self.shared.pack.slot_members)

    def resume(self) -> None:
        """Send actions to the vector envs that waited for the end of an update (modes sync and serial)."""
        if self.trainer.learned:  # no rollout waits for a later batch: a batch has one rollout or all of them
            self.sampler.resume_finished()
            self.trainer.learned = False

    @property
    def between_batches(self) -> bool:
        """True if all vector envs wait for actions after an update, or have not stepped (modes sync and serial)."""
        return self.trainer.learned or not self.sampler.within_rollout

    def _listen(self) -> bool:
        """Handle all received messages. Return True if there was a message."""
        heard = False
        while self._has_mail():
            self._handle(self._connection.recv())
            heard = True
        return heard

    def _train(self) -> None:
        torch.set_num_threads(max(1, self._setup.plan.threads // self._setup.plan.parts))
        torch.get_num_threads()
        ready_fd = self._setup.ready_fd
        try:
            with network_errors(), self.pack.streams.learning():
                self.trainer.run(lambda: os.eventfd_write(ready_fd, 1))
        except Exception as error:  # noqa: BLE001 - the parent reports it and ends the run
            self.send(_failure(error, self.pack.device))
            os._exit(1)

    # -- messages -------------------------------------------------------------------------------------------

    def _handle(self, message: ToLearner) -> None:
        match message:
            case StopLearner():
                self.trainer.stopping = True
                self.stopped = True
            case TrainUntil(member, frames):
                index = self.shared.members.index(member)
                self._limits[index] = -(-frames // self._setup.spec.frame_skip)
            case PauseTraining():
                self.paused = self.trainer.paused = True
            case command:
                received = time.perf_counter()
                self.trainer.commands.append(lambda: self._carry_out(command, received))
                if self._edits_itself and isinstance(command, Load | SetValues | EvaluateMember):
                    self.trainer.run_commands_meanwhile()
                else:
                    with self.trainer.wake:
                        self.trainer.wake.notify()

    def _carry_out(self, command: Command, received: float) -> None:
        """Run a command, in the main thread, the trainer thread, or a thread of `Parts`."""
        members = self.trainer.members
        match command:
            case Load():
                self._acknowledge(self.trainer.load(command), received)
            case SetValues():
                self._acknowledge(self.trainer.set_values(command), received)
            case EvaluateMember(member, begins):
                members.evaluate(member, begins=begins)
            case Save(_, key, entry):
                members.save(command)
                self.send(Saved(key, entry))
            case SaveLearner(number):
                vector_envs = self._setup.config.mode == "serial" and self.between_batches
                self.send(LearnerSaved(number, self._continuation.save(vector_envs=vector_envs)))
            case _:
                assert_never(command)

    def _acknowledge(self, ack: Acknowledgement | None, received: float) -> None:
        if ack is not None:
            self.send(replace(ack, clock={"received": received} | ack.clock))

    def send(self, message: FromLearner | ChildFailed) -> None:
        """Send a message to the supervisor."""
        with self._send_lock:
            self._connection.send(message)

    def _report_limits(self) -> None:
        steps = self.shared.sampling.steps
        reached = [i for i, limit in self._limits.items() if steps[i] >= limit]
        for i in reached:
            del self._limits[i]
        if reached:
            self.send_report()

    def send_report(self) -> None:
        """Send a report to the supervisor."""
        self.send(self.report())

    def report(self) -> LearnerReport:
        """Build a report: statistics of the members, and episodes that ended since the last report."""
        self._next_report = time.monotonic() + REPORT_SECONDS
        self._expect_frames()
        plan, sampling, learning = self._setup.plan, self.shared.sampling, self.shared.learning
        episodes, games = sampling.take()
        with learning.lock:
            generations = self.trainer.members.generations.copy()  # because another thread may add a member
            members = [
                MemberStats(
                    member=member,
                    steps=learning.steps[i],
                    frames=int(sampling.steps[i]) * self._setup.spec.frame_skip,
                    updates=learning.updates[i],
                    values=learning.take_means(i),
                    generation=generations[member],
                    broken=learning.take_broken(i),
                )
                for i, member in enumerate(self.shared.members)
                if member in generations
            ]
            totals = {
                "inference": sampling.inference_seconds,
                "environment": sampling.environment_seconds,
                "learning": learning.learning_seconds,
                "waiting": self._waiting_seconds,
            }
            if learning.gpu_seconds is not None:
                totals["learning on the GPU"] = learning.gpu_seconds
            lag_max, discarded = learning.lag_max, learning.discarded
        stage_seconds = {k: v - self._reported.get(k, 0.0) for k, v in totals.items()}
        self._reported = totals
        return LearnerReport(
            plan.device,
            members,
            episodes,
            stage_seconds,
            lag_max,
            discarded,
            games,
            self.acceleration.report(),
        )


def main() -> None:
    """Run as a child process until the parent stops it."""
    connection, setup = begin_child()
    if setup.connection_fd >= 0:
        connection = Connection(setup.connection_fd)
    try:
        learner = Learner(setup, connection)
        learner.run()
        if not learner.join(END_SECONDS):
            # Skip the interpreter's shutdown. It would abort the process, because the trainer thread is in native code.
            os._exit(0)
        learner.sampler.close()
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        failure = _failure(error, torch.device(setup.plan.device))
        send_failure(connection, failure.text, user_error=failure.user_error)
        os._exit(1)  # see above


def _failure(error: BaseException, device: torch.device) -> ChildFailed:
    """Convert an exception to a failure message for the parent."""
    if isinstance(error, ConfigError | EnvSetupError):
        return ChildFailed(str(error), user_error=True)
    if device.type == "cuda" and ran_out(error):
        return ChildFailed(out_of_memory(device, error), user_error=True)
    return ChildFailed(traceback.format_exc(), user_error=False)


if __name__ == "__main__":
    main()
