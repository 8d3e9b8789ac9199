"""The cards that RunPod's workers have, and what `GPU` may say."""

import re
from dataclasses import dataclass

from worker.errors import SettingsError
from worker.sentences import nearest

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Card:
    """One type of GPU: its memory in MiB as nvidia-smi shows it, and its compute capability."""

    name: str
    mib: int
    capability: tuple[int, int]

    @property
    def memory(self) -> int:
        return self.mib * MIB


# RunPod's list: https://docs.runpod.io/references/gpu-types. What nvidia-smi shows is a little less
# than the name of a card says; what CUDA hands out is less again (`estimate.HELD`). Published
# readings are behind L40S, A100, H100, H200, B200, L4 and RTX PRO 6000; the other sizes are what
# such cards are known for, and nobody has checked them here.
CARDS = (
    Card("RTX 2000 Ada", 16380, (8, 9)),
    Card("RTX A4000", 16376, (8, 6)),
    Card("RTX 4000 Ada", 20475, (8, 9)),
    Card("RTX A4500", 20470, (8, 6)),
    Card("L4", 23034, (8, 9)),
    Card("RTX A5000", 24564, (8, 6)),
    Card("RTX 3090", 24576, (8, 6)),
    Card("RTX 4090", 24564, (8, 9)),
    Card("RTX 5000 Ada", 32760, (8, 9)),
    Card("RTX 5090", 32607, (12, 0)),
    Card("A40", 46068, (8, 6)),
    Card("L40", 46068, (8, 9)),
    Card("L40S", 46068, (8, 9)),
    Card("RTX A6000", 49140, (8, 6)),
    Card("RTX 6000 Ada", 49140, (8, 9)),
    Card("A100", 81920, (8, 0)),
    Card("H100", 81559, (9, 0)),
    Card("H100 NVL", 95830, (9, 0)),
    Card("RTX PRO 6000", 97887, (12, 0)),
    Card("H200", 143771, (9, 0)),
    Card("B200", 183359, (10, 0)),
)
_FILLING = re.compile(r"nvidia|geforce|generation|blackwell|edition|server|workstation|\d+ ?gb\b")


def read(text: str) -> tuple[int, Card]:
    """Return how many cards `GPU` names, and of which type.

    It says a name (`L40S`, `NVIDIA A100 80GB PCIe`), several (`2xA100`), or a number of GB, which
    is a card of this memory of the newest type that every model and kernel knows (8.9).
    Raises SettingsError.
    """
    found = re.fullmatch(r"\s*(?:(\d+)\s*[x×*]\s*)?(.+?)\s*", text, re.IGNORECASE)
    count, name = (int(found[1] or 1), found[2]) if found else (0, "")
    wanted = _plain(name)
    for card in CARDS:
        if count and wanted in (_plain(card.name), _plain(card.name).removeprefix("rtx")):
            return count, card
    if count and (size := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB|GiB)?", name, re.IGNORECASE)):
        return count, Card(f"{size[1]} GB", int(float(size[1]) * 1024), (8, 9))
    raise SettingsError(
        f"GPU={text!r} is no card that RunPod has: it is a name such as L40S, several such as "
        f"2xA100, or a number of GB.{nearest(name, [card.name for card in CARDS])}"
    )


def _plain(name: str) -> str:
    name = _FILLING.sub("", name.lower())
    return re.sub(r"[\s_-]|pcie$|sxm\d?$", "", name.replace("sxm4", "").replace("hbm3", ""))
