"""Servers of engines: started, asked over HTTP, stopped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def serving(command, log, path, **options):
    """The port of a server whose command has "PORT" in the place of one, once it answers at `path`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with log.open("w") as out:
        running = subprocess.Popen(
            [port if word == "PORT" else str(word) for word in command],
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options,
        )  # fmt: skip
    try:
        for _ in range(2000):  # an interpreted one takes minutes
            assert running.poll() is None, log.read_text()[-3000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}")
                break
            time.sleep(0.3)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
        running.wait(timeout=60)


def answered(port, body):
    """The choices of a completion; what a server says in the place of one is a ValueError."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        return json.load(urllib.request.urlopen(asked, timeout=120))["choices"]
    except urllib.error.HTTPError as error:
        raise ValueError(f"HTTP {error.code}, {error.read().decode()}") from None
    except ConnectionError:
        raise ValueError("the connection ends without an answer") from None


def completed(port, body):
    """The text of a completion."""
    return answered(port, body)[0]["text"]


def alone_and_at_once(port, bodies):
    """The texts of these requests, one after the other and all at once."""
    alone = [completed(port, body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        return alone, list(pool.map(lambda body: completed(port, body), bodies))
