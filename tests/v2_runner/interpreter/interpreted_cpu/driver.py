"""The driver of the backend: it is there, and is never asked for more."""

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import Benchmarker, DriverBase


class Driver(DriverBase):
    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_benchmarker(self) -> Benchmarker:
        raise NotImplementedError
