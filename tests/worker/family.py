"""A worker's process with a child and a grandchild, made by `multiprocessing` as argv[1] says.

Each prints its process id. With `importing` the child is still on the way to its function.
"""

import functools
import multiprocessing
import os
import pickle
import sys
import time

from worker.lifetime import Child


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
        run(method, functools.partial(work, method, depth - 1))
    time.sleep(60)


def run(method, function):
    multiprocessing.get_context(method).Process(target=Child(function)).start()


if __name__ == "__main__":
    if sys.argv[1] == "importing":
        assert pickle.dumps(SlowToImport())
        print(os.getpid(), flush=True)
        run("spawn", functools.partial(work, "spawn", 0, SlowToImport()))
        time.sleep(60)
    work(sys.argv[1], 2)
