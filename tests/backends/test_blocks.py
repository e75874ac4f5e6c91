"""Which calls a ``with backend(...)`` holds for: threads and tasks that begin inside, while it lasts, and no others."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdec_kernels import backend
from specdec_kernels.backends import block


def chosen():
    return block().name


@pytest.fixture(autouse=True)
def outside():
    """What is chosen outside of any block."""
    return chosen()


def in_thread(act):
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_start_inside():
    with backend("reference"):
        assert in_thread(chosen) == "reference"
        assert in_thread(lambda: in_thread(chosen)) == "reference"
        with backend("cpu"):
            assert in_thread(chosen) == "cpu"
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(chosen).result() == "reference"


def test_threads_with_a_run_of_their_own():
    class Worker(threading.Thread):
        def run(self):
            self.found = chosen()

    with backend("reference"):
        worker = Worker()
        worker.start()
        worker.join()
    assert worker.found == "reference"
    assert "run" not in vars(worker)


def test_the_block_of_a_thread_is_its_own(outside):
    """Neither a thread that ran before, nor one that it starts meanwhile, is in another thread's block."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(chosen).result() == outside
        with backend("reference"):
            assert pool.submit(chosen).result() == outside
            assert pool.submit(in_thread, chosen).result() == outside
            assert pool.submit(entered, "cpu").result() == "cpu"
            assert chosen() == "reference"


def entered(name):
    with backend(name):
        return in_thread(chosen)


def test_a_thread_may_outlive_the_block_it_began_in(outside):
    with ThreadPoolExecutor(1) as pool:
        with backend("cpu"):
            with backend("reference"):
                assert pool.submit(chosen).result() == "reference"
            assert pool.submit(chosen).result() == "cpu"
        assert pool.submit(chosen).result() == outside


def test_tasks(outside):
    async def late(ended):
        await ended.wait()
        return chosen()

    async def main():
        ended = asyncio.Event()
        with backend("reference"):
            inside, task = await asyncio.create_task(soon()), asyncio.create_task(late(ended))
            await asyncio.sleep(0)
        ended.set()
        return inside, await task

    async def soon():
        return chosen()

    assert asyncio.run(main()) == ("reference", outside)
