"""`python -m worker`, and a probe beside it that says how late its event loop is.

Every 10 ms a thread asks the loop to call it back. Each answer is a line in the file LAG_FILE: when
it was asked for (`time.monotonic`, the same in every process), how many seconds later it came, and,
where that took long, what the loop's thread was doing meanwhile.
"""

import asyncio
import json
import os
import sys
import threading
import time
import traceback

import uvloop

EVERY_S = 0.01
LATE_S = 0.05


def probe(loop: asyncio.AbstractEventLoop, loops_thread: int) -> None:
    with open(os.environ["LAG_FILE"], "w", buffering=1) as file:
        while True:
            called, asked_s = threading.Event(), time.monotonic()
            loop.call_soon_threadsafe(called.set)
            doing = ""
            if not called.wait(LATE_S):
                frame = sys._current_frames()[loops_thread]
                doing = "".join(traceback.format_stack(frame)[-12:])
                called.wait()
            print(json.dumps([asked_s, time.monotonic() - asked_s, doing]), file=file)
            time.sleep(EVERY_S)


def probed_loop() -> asyncio.AbstractEventLoop:
    loop = make_loop()
    me = threading.get_ident()
    loop.call_soon(threading.Thread(target=probe, args=(loop, me), daemon=True).start)
    return loop


make_loop = uvloop.new_event_loop

if __name__ == "__main__":
    from worker.__main__ import main

    uvloop.new_event_loop = probed_loop
    sys.exit(main())
