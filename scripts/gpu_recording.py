"""The stage of gpu_check.py that asks of a real GPU what the pretend device of the tests only assumes.

Each check returns "" or what is wrong. The last one breaks a recording on purpose, after which the process records
nothing any more.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_stand import Job

from pbt_rl.algos.distributions import TanhGaussian
from pbt_rl.learner.cuda import recording as product
from pbt_rl.learner.cuda.memory import PageLocks, host_buffer

THREADS_SECONDS = 5.0


def recording(job: Job) -> dict[str, Any]:
    """Record, be refused, act beside a recording, break one, lock memory twice at one address."""
    if not job.on_gpu:
        return {"left out": "no GPU"}
    checks = (replays_as_it_goes, refuses, beside_another_thread, locks_again, mends)
    found = {check.__name__: check(job.torch_device) for check in checks}
    return {**{name: said or "right" for name, said in found.items()}, "passed": not any(found.values())}


def recorded(program: Callable[[], Any], recorder: product.Recorder, *generators: torch.Generator) -> Any:
    """Return what carries a program out; it has been, three times."""
    one = product.Recording(program, generators)
    for _ in range(3):
        one.run(recorder)
    return lambda: one.run(recorder)


def replays_as_it_goes(device: torch.device) -> str:
    """Draw bent normals in a replay and call by call; every replay draws on, and reads what lies in place then."""
    recorder, generator = product.recorder_of(device), torch.Generator(device).manual_seed(1)
    assert recorder is not None
    distribution = TanhGaussian((-1.0, 0.0), (1.0, 3.0))
    params, out = torch.zeros(64, 4, device=device), torch.zeros(64, 3, device=device)

    def program() -> None:
        action, log_prob = distribution.sample(params, generator)
        out.copy_(torch.cat((action, (log_prob + distribution.entropy(params)).unsqueeze(1)), 1))

    run = recorded(program, recorder, generator)
    answers = []
    for again in (run, program):
        generator.manual_seed(2)
        params.fill_(0.5)
        again()
        first = out.clone()
        again()
        answers.append(torch.stack((first, out)).cpu())
    if torch.equal(answers[0][0], answers[0][1]):
        return "a replay draws the same numbers as the one before"
    return "" if torch.allclose(answers[0], answers[1], atol=1e-5) else "a replay computes something else"


def refuses(device: torch.device) -> str:
    """Find a program that looks at a value before it is recorded, and record another one after it."""
    x, y = torch.ones(4, device=device), torch.zeros(4, device=device)
    looks, takes = product.recorder_of(device), product.recorder_of(device)
    assert looks is not None
    assert takes is not None
    try:
        recorded(lambda: y.copy_(x if float(x.sum()) > 0 else -x), looks)
    except product.NotRecordedError:
        run = recorded(lambda: y.copy_(x * 2), takes)
        x.fill_(3.0)
        run()
        answer = y.cpu().tolist()
        return "" if answer == [6.0] * 4 else f"a replay gave {answer}"
    return "a program that looks at a value was recorded"


def beside_another_thread(device: torch.device) -> str:
    """Do what a turn does, call by call and replayed, while another thread records again and again."""
    acting, learning = torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device)
    ended, said = threading.Event(), []

    def learn() -> None:
        def step() -> None:
            (weight @ weight).tanh().sum().backward()

        try:
            with torch.cuda.stream(learning):
                weight = torch.ones(256, 256, device=device, requires_grad=True)
                weight.grad = torch.zeros_like(weight)
                recorder = product.recorder_of(device)
                assert recorder is not None
                while not ended.is_set():
                    recorded(step, recorder)()
                    learning.synchronize()
        except Exception as error:  # noqa: BLE001 - it is the result
            said.append(f"recording beside a turn: {error}")

    thread = threading.Thread(target=learn)
    thread.start()
    end = time.monotonic() + THREADS_SECONDS
    try:
        with torch.cuda.stream(acting):
            recorder, generator = product.recorder_of(device), torch.Generator(device).manual_seed(3)
            assert recorder is not None
            x, out = torch.zeros(1 << 16, device=device), torch.zeros(1 << 16, device=device)
            on_host = host_buffer((1 << 16,), torch.float32, device)
            run = recorded(
                lambda: out.copy_(x + torch.rand(1 << 16, generator=generator, device=device)),
                recorder,
                generator,
            )
            turns = 0
            while time.monotonic() < end and not said:
                turns += 1
                x.copy_(torch.from_numpy(np.full(1 << 16, turns, np.float32)), non_blocking=True)
                run() if turns % 2 else out.copy_(x + torch.rand(1 << 16, generator=generator, device=device))
                if not product.ONE_RANDOM_STATE:
                    out += torch.rand(1, device=device) * 0
                on_host.copy_(out, non_blocking=True)
                event = torch.cuda.Event(blocking=True)
                event.record()
                event.query()
                event.synchronize()
                torch.empty(turns % 50 * 100_000, device=device), host_buffer((turns,), torch.uint8, device)
                if not bool(((on_host >= turns) & (on_host < turns + 1.01)).all()):
                    said.append(f"turn {turns} gave other numbers")
    except Exception as error:  # noqa: BLE001 - it is the result
        said.append(f"a turn beside a recording: {error}")
    ended.set()
    thread.join()
    return "; ".join(said)


def mends(device: torch.device) -> str:
    """Break a recording by a wait that no rehearsal sees; go on call by call."""
    recorder, generator = product.recorder_of(device), torch.Generator(device).manual_seed(4)
    assert recorder is not None
    x, before = torch.ones(4, device=device), torch.cuda.current_stream(device)

    def program() -> None:
        x.add_(torch.rand(4, generator=generator, device=device))
        torch.cuda.current_stream(device).synchronize()

    try:
        recorded(program, recorder, generator)
    except product.NotRecordedError:
        program()
        torch.cuda.empty_cache()
        drawn = torch.rand(4, generator=generator, device=device) + torch.rand(4, device=device)
        wrong = torch.cuda.current_stream(device) != before or not bool((x + drawn > 0).all())
        return "the stream is another one" if wrong else ""
    return "a program that waits was recorded"


def locks_again(device: torch.device) -> str:
    """Lock memory, let it go, and lock other memory, which mostly lies at the same address."""
    size = 1 << 22
    for number in (1, 2, 3):
        memory = mmap.mmap(-1, size)
        locks = PageLocks([memory], device)
        array = np.ndarray((size,), np.uint8, buffer=memory)
        array[:] = number
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        there.copy_(torch.from_numpy(array), non_blocking=True)
        wrong = int((there != number).sum())
        locks.release()
        del array
        memory.close()
        if wrong:
            return f"{wrong} bytes of the memory locked as number {number} are others"
    return ""
