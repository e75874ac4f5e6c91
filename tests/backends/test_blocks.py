"""The calls that a ``with backend(...)`` holds for: those of its thread, and of tasks that begin inside."""

import asyncio
import contextvars
import sys
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


inherits = getattr(sys.flags, "thread_inherit_context", False)


def test_threads_have_the_block_of_their_context(outside):
    with backend("reference"):
        assert in_thread(chosen) == ("reference" if inherits else outside)
        copy = contextvars.copy_context()
        assert in_thread(lambda: copy.run(chosen)) == "reference"
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(contextvars.copy_context().run, chosen).result() == "reference"
    assert copy.run(chosen) == outside  # the block has ended


def test_the_start_of_a_thread_is_pythons_own():
    with backend("reference"):
        assert threading.Thread.start.__module__ == "threading"
        assert threading.Thread.start.__code__.co_name == "start"
        assert not hasattr(threading.Thread.start, "__wrapped__")


def test_the_block_of_a_thread_is_its_own(outside):
    """A thread that ran before is not in another thread's block, and its block is in no other."""

    def entered(name):
        with backend(name):
            return chosen()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(chosen).result() == outside
        with backend("reference"):
            assert pool.submit(chosen).result() == outside
            assert pool.submit(entered, "cpu").result() == "cpu"
            assert chosen() == "reference"


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
