"""The compiler of the backend, which the interpreter never calls."""

from types import ModuleType

from triton.backends.compiler import BaseBackend, GPUTarget


class Compiler(BaseBackend):
    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        raise NotImplementedError

    def parse_options(self, options: dict[str, object]) -> object:
        raise NotImplementedError

    def add_stages(self, stages: dict[str, object], options: object) -> None:
        raise NotImplementedError

    def load_dialects(self, context: object) -> None:
        raise NotImplementedError

    def get_module_map(self) -> dict[str, ModuleType]:
        raise NotImplementedError
