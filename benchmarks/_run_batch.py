"""`vllm run-batch` on one engine: reads names of files, writes the seconds that each took."""

import asyncio
import sys
import time

from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.run_batch import make_arg_parser, run_batch
from vllm.utils.argparse_utils import FlexibleArgumentParser


async def main() -> None:
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    async with build_async_engine_client(args) as client:
        print("ready", flush=True)
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            args.input_file, args.output_file = name, f"{name}.out"
            began_s = time.monotonic()
            await run_batch(client, args)
            print(f"took {time.monotonic() - began_s}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
