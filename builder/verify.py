"""Prove that the model in the image needs no network: `python builder/verify.py`.

It runs in the finished image, where vLLM is, with the hub switched off and every proxy a closed
port. It asks for what the start asks for, except for what needs a GPU, and reads the header of
every weight. With nothing baked in it does nothing; a failure ends the build with one sentence.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

CLOSED = "http://127.0.0.1:9"


def offline(home: str, base: str) -> dict[str, str]:
    """Return an environment without the hub, without a network and without another cache."""
    cache = f"{base}/huggingface-cache/hub"
    proxies = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return {
        **dict.fromkeys(proxies, CLOSED),
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": CLOSED,
        "HF_HOME": home,
        "HF_HUB_CACHE": cache,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


def verify(baked: dict[str, str]) -> None:
    """Load everything but the weights of the baked model, and look into those.

    vLLM's parser needs a GPU where it was built for one, so most builds judge the whole of the
    settings not here but at the start. Raises StartError, or what vLLM and transformers raise.
    """
    from safetensors import safe_open
    from vllm.platforms import current_platform
    from vllm.tokenizers import get_tokenizer
    from vllm.transformers_utils.config import get_config, try_get_generation_config

    from worker import spelling
    from worker.configuration.settings import Settings
    from worker.engine import probe
    from worker.errors import StartError
    from worker.model import files, locate

    caches = locate.caches(os.environ, baked)

    def found(what: str, name: str, revision: str | None = None, kind: Any = "model") -> str:
        path = locate.resolve(name, revision, caches, kind)
        if not Path(path).exists():
            raise StartError(f"the {what} {name} is not in the image, or only a part of it is")
        return path

    for adapter in files.adapters(baked):
        found("adapter", adapter, kind="adapter")
    path = tokenizer_path = found("model", baked["MODEL_NAME"], baked.get("MODEL_REVISION"))
    if tokenizer := files.baked_tokenizer(baked):
        tokenizer_path = found("tokenizer", *tokenizer, "tokenizer")
    for weights in Path(path).rglob("*.safetensors"):
        with safe_open(weights, framework="np") as tensors:
            print(f"{weights.name}: {len(list(tensors.keys()))} tensors", flush=True)
    trust = spelling.boolean(os.environ.get("TRUST_REMOTE_CODE") or "0")
    if not path.endswith(".gguf"):
        config = get_config(path, trust_remote_code=trust)
        try_get_generation_config(path, trust_remote_code=trust)
        print(f"configuration: {config.model_type}", flush=True)
    mode = os.environ.get("TOKENIZER_MODE") or "auto"
    tokenizer = get_tokenizer(tokenizer_path, tokenizer_mode=mode, trust_remote_code=trust)
    if not tokenizer.encode("Hello"):
        raise StartError("the tokenizer makes no tokens of a word")
    print(f"tokenizer: {type(tokenizer).__name__}", flush=True)
    if current_platform.device_type:
        probe.check(locate.locate(Settings.from_env(os.environ, baked).args, caches))
        print("settings: sound", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="the image's root, or a folder"
    )
    options = parser.parse_args()
    file = options.root / "etc/worker-vllm/baked.json"
    baked = json.loads(file.read_text()) if file.exists() else {}
    if not baked:
        print("No model is baked in: nothing to verify.")
        return 0
    baked["BASE_PATH"] = str(options.root / baked["BASE_PATH"].lstrip("/"))
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(offline(home, baked["BASE_PATH"]))
        try:
            verify(baked)
        except Exception as error:
            from worker.sentences import hide

            sentence = hide(" ".join(str(error).split())[:600])
            print(f"error: {baked['MODEL_NAME']} would not start offline: {sentence}")
            return 1
    print(f"{baked['MODEL_NAME']} is whole, and needs no network.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
