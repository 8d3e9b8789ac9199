# The published images: `docker buildx bake --print publish` shows them, `docker buildx bake` builds
# the first. One with a model inside: `MODEL_NAME=Qwen/Qwen3-8B docker buildx bake baked`.

variable "VERSION" {
  default = "0.4.0"
}

# vLLM's, the same as in the Dockerfile.
variable "VLLM_VERSION" {
  default = "0.32.0"
}

# The CUDA of vLLM's image without a suffix (since vLLM 0.20), and of the one with "-cu129".
variable "CUDA" {
  default = "13.0"
}

variable "OLDER_CUDA" {
  default = "12.9"
}

variable "IMAGE" {
  default = "worker-vllm"
}

variable "SOURCE" {
  default = ""
}

variable "MODEL_NAME" {
  default = ""
}

variable "MODEL_REVISION" {
  default = ""
}

variable "TOKENIZER_NAME" {
  default = ""
}

variable "TOKENIZER_REVISION" {
  default = ""
}

variable "QUANTIZATION" {
  default = ""
}

variable "QUANTIZE" {
  default = ""
}

variable "LORA_MODULES" {
  default = ""
}

variable "BASE_PATH" {
  default = ""
}

group "default" {
  targets = ["cuda"]
}

group "publish" {
  targets = ["cuda", "older-cuda", "cpu"]
}

target "worker" {
  platforms = ["linux/amd64"]
  labels = {
    "org.opencontainers.image.source" = "${SOURCE}"
  }
}

target "cuda" {
  inherits = ["worker"]
  args = {
    BASE_IMAGE = "vllm/vllm-openai:v${VLLM_VERSION}"
  }
  tags = ["${IMAGE}:${VERSION}", "${IMAGE}:${VERSION}-cuda${CUDA}", "${IMAGE}:latest"]
}

target "older-cuda" {
  inherits = ["worker"]
  args = {
    BASE_IMAGE = "vllm/vllm-openai:v${VLLM_VERSION}-cu129"
  }
  tags = ["${IMAGE}:${VERSION}-cuda${OLDER_CUDA}"]
}

target "cpu" {
  inherits = ["worker"]
  args = {
    BASE_IMAGE = "vllm/vllm-openai-cpu:v${VLLM_VERSION}"
  }
  tags = ["${IMAGE}:${VERSION}-cpu"]
}

# The build arguments of a model are variables of the environment here; an empty one is not set.
target "baked" {
  inherits = ["cuda"]
  args = {
    MODEL_NAME         = "${MODEL_NAME}"
    MODEL_REVISION     = "${MODEL_REVISION}"
    TOKENIZER_NAME     = "${TOKENIZER_NAME}"
    TOKENIZER_REVISION = "${TOKENIZER_REVISION}"
    QUANTIZATION       = "${QUANTIZATION}"
    QUANTIZE           = "${QUANTIZE}"
    LORA_MODULES       = "${LORA_MODULES}"
    BASE_PATH          = "${BASE_PATH}"
  }
  secret = ["id=HF_TOKEN,env=HF_TOKEN"]
  tags   = ["${IMAGE}:${VERSION}-baked"]
}
