# The worker on vLLM's own image, and, where MODEL_NAME is given, a model inside.
#
#   docker build -t worker .
#   docker build -t worker --build-arg MODEL_NAME=Qwen/Qwen3-8B --secret id=HF_TOKEN .

# The one line to raise, with its likes in docker-bake.hcl and builder/requirements.in.
ARG VLLM_VERSION=0.32.0
# Any image with this vLLM: a mirror, another CUDA, a CPU.
ARG BASE_IMAGE=vllm/vllm-openai:v${VLLM_VERSION}

# --- what we add to vLLM's image: RunPod's SDK ---------------------------------------------
FROM ${BASE_IMAGE} AS additions
WORKDIR /opt/worker-vllm
COPY builder/install.py builder/requirements.txt builder/
# More packages with their versions, such as "vllm-bnb-plugin==0.0.3 bitsandbytes==0.50.2".
ARG PLUGINS=""
# Another version of RunPod's SDK: 1.12.0 is tested beside the pinned one.
ARG SDK=""
RUN python3 builder/install.py builder/requirements.txt ${SDK:+runpod==${SDK}} ${PLUGINS}
# Commands in pages and consoles say `python`, which not every base has.
RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python

# --- the model, where one is named: fetched with the hub's client alone ----------------------
FROM ${BASE_IMAGE} AS download
WORKDIR /opt/worker-vllm
COPY src/worker/__init__.py src/worker/errors.py src/worker/sentences.py src/worker/
COPY src/worker/model/ src/worker/model/
COPY builder/bake.py builder/
ENV PYTHONPATH=/opt/worker-vllm/src PYTHONUNBUFFERED=1
ARG MODEL_NAME MODEL_REVISION TOKENIZER_NAME TOKENIZER_REVISION
ARG QUANTIZATION QUANTIZE LORA_MODULES BASE_PATH HF_ENDPOINT
RUN --mount=type=secret,id=HF_TOKEN python3 builder/bake.py --root /baked

# --- the same with smaller weights, where QUANTIZE says so -----------------------------------
FROM download AS model
COPY builder/quantize.py builder/quantize.txt builder/
ARG QUANTIZE TRUST_REMOTE_CODE
# Its transformers is not vLLM's: it is installed beside everything else. The torch is the base's.
RUN if [ "${QUANTIZE:-none}" != none ]; then \
        sed -i /^torch==/d builder/quantize.txt \
        && python3 -m pip install --no-cache-dir --no-deps --target /quantize \
            -r builder/quantize.txt \
        && PYTHONPATH=/quantize python3 builder/quantize.py --from /baked --root /quantized \
        && rm -rf /baked && mv /quantized /baked; \
    fi

# --- the worker ----------------------------------------------------------------------------
FROM additions AS worker
# Before the source, which changes more often: a new worker then ships without the model.
COPY --from=model /baked/ /
COPY src/worker/ src/worker/
COPY src/local_endpoint/ src/local_endpoint/
ENV PYTHONPATH=/opt/worker-vllm/src PYTHONUNBUFFERED=1 RUNPOD_LOG_LEVEL=INFO
LABEL org.opencontainers.image.title="worker-vllm" \
      org.opencontainers.image.description="A RunPod serverless worker that serves Hugging Face models with vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.4.0"
# vLLM's image starts `vllm serve`; RunPod stops the worker by a signal to this process.
ENTRYPOINT ["python3", "-m", "worker"]
CMD []

# --- the proof that a baked model needs no network; with WARM=1, what its start compiles -----
FROM worker AS verified
ARG TRUST_REMOTE_CODE WARM
COPY builder/verify.py builder/warm.py builder/
RUN python3 builder/verify.py && if [ "${WARM:-0}" = 1 ]; then python3 builder/warm.py; fi

FROM worker
# The same file again: it makes the image wait for the proof.
COPY --from=verified /etc/worker-vllm/ /etc/worker-vllm/
