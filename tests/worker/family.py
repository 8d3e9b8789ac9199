"""A worker's process with a child and a grandchild, made by `multiprocessing` as argv[1] says.

Each prints its process id. With `importing` the child is still on the way to its function.
"""

import functools
import multiprocessing
import os
import pathlib
import pickle
import sys
import time

from worker.lifetime import Child, be_fork_server, begin_fork_server, fork_server


class SlowToImport:
    """Takes a minute to be unpickled, as vLLM takes seconds to be imported."""

    def __reduce__(self):
        return _slow, (os.getpid(),)


def _slow(pid):
    if os.getpid() != pid:
        print(os.getpid(), flush=True)
        time.sleep(60)


def work(method, depth, _=None):
    print(os.getpid(), flush=True)
    if depth:
        below = "spawn" if method == "forkserver" else method
        run(method, functools.partial(work, below, depth - 1))
    time.sleep(60)


def run(method, function):
    multiprocessing.get_context(method).Process(target=Child(function)).start()


if __name__ == "__main__":
    if sys.argv[1] == "importing":
        assert pickle.dumps(SlowToImport())
        print(os.getpid(), flush=True)
        run("spawn", functools.partial(work, "spawn", 0, SlowToImport()))
        time.sleep(60)
    if sys.argv[1] == "forkserver":
        begin_fork_server("family", pathlib.Path(sys.argv[2]))
        print(fork_server(), flush=True)
    work(sys.argv[1], 2)
elif __name__ == "family":
    be_fork_server()
