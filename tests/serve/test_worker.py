"""The worker: together what goes together, nothing lost, a full queue says so."""

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from realmlm.errors import BadInput, NotEnough
from realmlm.serve import worker as settings
from realmlm.serve.worker import Busy, Results, Work, Worker


class Gate:
    """Work that waits until it is let through, and remembers its batches."""

    def __init__(self) -> None:
        self.open, self.begun, self.batches = threading.Event(), threading.Event(), []  # type: ignore[var-annotated]

    def work(self, items: list[int]) -> list[int]:
        self.begun.set()
        assert self.open.wait(10)
        self.batches.append(list(items))
        return [item * 10 for item in items]


def held(worker: Worker, gate: Gate) -> "Future[Any]":
    """The worker is busy with a job of its own from here on."""
    first = worker.together(gate.work, 0, key="first")
    assert gate.begun.wait(10)
    return first


def test_jobs_of_one_key_are_worked_off_together_and_in_order() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=4)
    first = held(worker, gate)
    futures = [worker.together(gate.work, item, key="a") for item in range(1, 7)]
    futures += [worker.together(gate.work, item, key="b") for item in (7, 8)]
    gate.open.set()
    assert [future.result(10) for future in (first, *futures)] == [item * 10 for item in range(9)]
    worker.close()
    assert gate.batches == [[0], [1, 2, 3, 4], [5, 6], [7, 8]]


def test_what_goes_together_need_not_stand_together_and_what_is_equal_is_done_once() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=4)
    held(worker, gate)
    items = [(1, "a"), (2, "b"), (1, "a"), (3, "a"), (4, "b"), (5, "a"), (6, "a")]
    futures = [worker.together(gate.work, item, key=key) for item, key in items]
    gate.open.set()
    assert [future.result(10) for future in futures] == [item * 10 for item, _ in items]
    worker.close()
    assert gate.batches == [[0], [1, 3, 5], [2, 4], [6]]  # the first of four jobs, two of which are equal


def test_what_was_given_up_is_left_out() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=4)
    first = held(worker, gate)
    futures = [worker.together(gate.work, item, key="a") for item in (1, 2)] + [worker.alone(lambda: 3)]
    assert futures[0].cancel()
    assert futures[2].cancel()
    assert not first.cancel()  # it is being worked on
    gate.open.set()
    assert futures[1].result(10) == 20
    worker.close()
    assert gate.batches == [[0], [2]]


def test_what_is_alone_runs_alone() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=8)
    seen = []
    held(worker, gate)
    before = worker.together(gate.work, 1, key="a")
    edit = worker.alone(lambda: seen.append(list(gate.batches)))
    after = worker.together(gate.work, 2, key="a")
    assert worker.busy
    gate.open.set()
    assert (before.result(10), edit.result(10), after.result(10)) == (10, None, 20)
    assert seen == [[[0], [1]]]
    worker.close()
    assert not worker.busy


def test_a_full_queue_and_a_closed_one_refuse() -> None:
    gate = Gate()
    worker = Worker(most_waiting=2, most_together=2)
    held(worker, gate)
    waiting = [worker.together(gate.work, item, key="a") for item in (1, 2)]
    with pytest.raises(Busy, match="2 requests are waiting"):
        worker.together(gate.work, 3, key="a")
    gate.open.set()
    assert [future.result(10) for future in waiting] == [10, 20]
    worker.close()
    with pytest.raises(Busy, match="stopping"):
        worker.alone(lambda: None)


def test_closing_finishes_what_waits() -> None:
    gate = Gate()
    worker = Worker(most_waiting=10, most_together=2)
    held(worker, gate)
    futures = [worker.together(gate.work, item, key=item) for item in range(1, 5)]
    closing = threading.Thread(target=worker.close)
    closing.start()
    gate.open.set()
    closing.join(10)
    assert [future.result(0) for future in futures] == [10, 20, 30, 40]


def test_one_bad_item_does_not_spoil_the_others() -> None:
    gate = Gate()
    worker = Worker(most_waiting=10, most_together=8)
    held(worker, gate)

    def picky(items: list[int]) -> list[int]:
        if 2 in items:
            raise BadInput("two is bad")
        return items

    futures = [worker.together(picky, item, key="a") for item in (1, 2, 3)]
    broken = worker.alone(lambda: 1 / 0)
    gate.open.set()
    assert futures[0].result(10) == 1
    assert futures[2].result(10) == 3
    with pytest.raises(BadInput):
        futures[1].result(10)
    with pytest.raises(ZeroDivisionError):
        broken.result(10)
    assert worker.together(picky, 5, key="a").result(10) == 5  # it goes on
    worker.close()


def test_results_of_a_batch_wake_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=64)
    woken = 0

    async def ask() -> list[Any]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counting(*call: Any) -> Any:
            nonlocal woken
            woken += 1
            return wake(*call)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
        results = Results()
        waiting = [worker.together(gate.work, item, key="a") for item in range(50)]
        waiting.append(worker.alone(lambda: 1 / 0))
        answers = [asyncio.ensure_future(results.result(future)) for future in waiting]
        await asyncio.sleep(0)  # all of them wait now
        gate.open.set()
        worker.close()  # the loop stands still until the last is done
        return await asyncio.gather(*answers, return_exceptions=True)

    *items, failed = asyncio.run(ask())
    assert items == [item * 10 for item in range(50)]
    assert isinstance(failed, ZeroDivisionError)
    assert woken == 1


def test_a_result_that_nobody_waits_for_is_not_worked_on() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=4)
    results = Results()

    async def give_up() -> Any:
        first = worker.together(gate.work, 0, key="first")
        assert gate.begun.wait(10)
        tasks = [
            asyncio.ensure_future(results.result(worker.together(gate.work, item, key="a")))
            for item in (1, 2)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        gate.open.set()
        assert await results.result(first) == 0
        return await asyncio.gather(*tasks, return_exceptions=True)

    given_up, answered = asyncio.run(give_up())
    assert isinstance(given_up, asyncio.CancelledError)
    assert answered == 20
    worker.close()
    assert gate.batches == [[0], [2]]


def test_what_others_finish_is_passed_on_and_the_next_batch_does_not_wait_for_it() -> None:
    worker = Worker(most_waiting=100, most_together=8)
    later: list[Future[str]] = [Future(), Future()]
    futures = [
        worker.together(lambda items: [later[item] for item in items], item, key="a") for item in (0, 1)
    ]
    assert worker.together(lambda items: items, 2, key="b").result(10) == 2
    assert not any(future.done() for future in futures)
    later[1].set_exception(ZeroDivisionError())
    later[0].set_result("zero")
    assert futures[0].result(10) == "zero"
    with pytest.raises(ZeroDivisionError):
        futures[1].result(10)
    worker.close()


def four_that_ask_again(worker: Worker, times: int, *, at_once: bool = False) -> list[int]:
    """The sizes of the batches of four clients, answered one after the other by another thread, or at once by
    the worker's own; each asks again as soon as it is answered."""
    sizes: list[int] = []
    over = threading.Semaphore(0)
    left = dict.fromkeys(range(4), times)

    with ThreadPoolExecutor(1) as answering:

        def work(clients: list[int]) -> list[Any]:
            sizes.append(len(clients))
            return clients if at_once else [answering.submit(time.sleep, 0.002) for _ in clients]

        def ask(client: int) -> None:
            left[client] -= 1
            if left[client] < 0:
                over.release()
            else:
                worker.together(work, client, key="a").add_done_callback(lambda _: ask(client))

        all_asked = threading.Event()
        worker.alone(all_asked.wait)
        for client in left:
            ask(client)
        all_asked.set()
        assert all(over.acquire(timeout=60) for _ in left)
    return sizes


@pytest.mark.parametrize("at_once", [False, True])  # at once: before the worker has ended the batch before
def test_those_who_were_just_answered_are_waited_for(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(settings, "GATHER_S", 60)
    monkeypatch.setattr(settings, "MOMENT_S", 60)
    worker = Worker(most_waiting=100, most_together=8, gather=True)
    assert four_that_ask_again(worker, 5, at_once=at_once) == [4] * 5  # none is counted twice
    worker.close()


def test_without_gathering_a_batch_is_whoever_waits() -> None:
    worker = Worker(most_waiting=100, most_together=8)
    assert len(four_that_ask_again(worker, 5)) > 5
    worker.close()


def test_a_batch_is_gathered_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, other in (("GATHER_S", "MOMENT_S"), ("MOMENT_S", "GATHER_S")):
        monkeypatch.setattr(settings, name, 0.05)
        monkeypatch.setattr(settings, other, 60)
        worker = Worker(most_waiting=100, most_together=8, gather=True)
        four_that_ask_again(worker, 1)
        assert worker.together(lambda items: items, 5, key="a").result(10) == 5  # three never ask again
        worker.close()


def test_nobody_waits_for_company_in_an_idle_service_nor_beside_an_edit_nor_when_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "GATHER_S", 60)
    worker = Worker(most_waiting=100, most_together=8, gather=True)
    monkeypatch.setattr(settings, "MOMENT_S", 0)
    four_that_ask_again(worker, 1)
    assert worker.together(lambda items: items, 5, key="a").result(10) == 5
    monkeypatch.setattr(settings, "MOMENT_S", 60)
    four_that_ask_again(worker, 1)
    waiting = worker.together(lambda items: items, 6, key="a")
    assert worker.alone(lambda: 7).result(10) == 7
    assert waiting.result(10) == 6
    four_that_ask_again(worker, 1)
    waiting = worker.together(lambda items: items, 8, key="a")
    worker.close()
    assert waiting.result(0) == 8


def test_who_would_wait_too_long_is_refused_at_once_with_the_seconds_until_it_is_worth_it() -> None:
    worker = Worker(most_waiting=100, most_together=2, patience_s=0.5)

    def slowly(items: list[int]) -> list[int]:
        time.sleep(0.2)
        return items

    assert worker.together(slowly, 0, key="a").result(10) == 0  # how long it takes is known from here on
    taken: list[Work] = []

    def ask_many() -> None:
        for item in range(100):
            taken.append(worker.together(slowly, item, key="a"))

    with pytest.raises(Busy, match="would wait about") as refused:
        ask_many()
    assert 4 <= len(taken) <= 8  # about 0.5 s of work, two in 0.2 s, and one batch at work
    assert refused.value.retry_s == 1
    assert [future.result(10) for future in taken] == list(range(len(taken)))
    assert max(future.begun - future.since for future in taken) < 0.5 + 0.3
    assert worker.together(slowly, 1, key="a").result(10) == 1
    worker.close()


def test_who_asks_when_one_takes_unusually_long_is_refused_too() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=2, patience_s=0.2)
    held(worker, gate)
    worker.together(gate.work, 1, key="a")
    time.sleep(0.3)
    with pytest.raises(Busy, match="would wait"):
        worker.together(gate.work, 2, key="a")
    gate.open.set()
    worker.close()


def test_those_who_gave_up_make_room_for_others() -> None:
    gate = Gate()
    worker = Worker(most_waiting=2, most_together=2)
    held(worker, gate)
    given_up = [worker.together(gate.work, item, key="a") for item in (1, 2)]
    with pytest.raises(Busy):
        worker.together(gate.work, 3, key="a")
    assert all(future.cancel() for future in given_up)
    last = worker.together(gate.work, 4, key="a")
    gate.open.set()
    assert last.result(10) == 40
    worker.close()
    assert gate.batches == [[0], [4]]


def test_a_worker_that_stops_refuses_what_it_has_not_begun_in_time() -> None:
    gate = Gate()
    worker = Worker(most_waiting=100, most_together=2)
    first = held(worker, gate)
    waiting = [worker.together(gate.work, item, key="a") for item in range(1, 5)]
    worker.stop(0.1)
    with pytest.raises(Busy, match="stopping"):
        worker.together(gate.work, 9, key="a")
    time.sleep(0.15)
    gate.open.set()
    assert first.result(10) == 0
    for future in waiting:
        with pytest.raises(Busy, match="stopping"):
            future.result(10)
    worker.close()
    assert gate.batches == [[0]]


def test_a_model_that_keeps_failing_or_hangs_is_known_until_it_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(most_waiting=100, most_together=4)

    def ask(error: Exception | None) -> str:
        def work(items: list[int]) -> list[int]:
            if error is not None:
                raise error
            return items

        worker.together(work, 1, key=object()).exception(10)
        worker.alone(lambda: None).result(10)  # it was counted
        return worker.trouble()

    broken = RuntimeError("it is broken")
    assert [ask(broken), ask(broken), ask(BadInput("not my fault")), ask(broken)] == [
        "", "", "", "the model failed 3 times in a row; the service's log says more",
    ]  # fmt: skip
    assert ask(BadInput("not my fault"))
    assert ask(None) == ""
    assert [ask(broken), ask(broken), ask(None), ask(broken)] == ["", "", "", ""]
    ask(None)
    gate = Gate()
    first = held(worker, gate)
    assert worker.trouble() == ""
    monkeypatch.setattr(settings, "STUCK_S", 0.0)
    assert "at work on one batch" in worker.trouble()
    gate.open.set()
    first.result(10)
    gate = Gate()
    edit = worker.alone(lambda: gate.work([0]))
    assert gate.begun.wait(10)
    assert worker.trouble() == "", "what an edit wrote may take long to embed"
    gate.open.set()
    edit.result(10)
    worker.close()
    assert worker.trouble() == ""


def test_a_device_that_is_lost_is_told() -> None:
    lost: list[Exception] = []
    worker = Worker(most_waiting=100, most_together=4, on_lost=lost.append)

    def fail(error: Exception) -> Exception:
        def work(items: list[int]) -> list[int]:
            raise error

        worker.together(work, 1, key=object()).exception(10)
        worker.alone(lambda: None).result(10)
        return error

    wrapped = NotEnough("cannot search")
    wrapped.__cause__ = RuntimeError("CUDA error: unspecified launch failure")
    gone = type("AcceleratorError", (RuntimeError,), {})("device-side assert triggered")
    fail(RuntimeError("CUDA error: out of memory"))
    fail(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    fail(RuntimeError("it is broken"))
    expected = [fail(RuntimeError("CUDA error: an illegal memory access")), fail(wrapped), fail(gone)]
    worker.close()
    assert lost == expected
