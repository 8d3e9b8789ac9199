"""What `GPU` may say: the cards that RunPod has, by every name they go by."""

import pytest

from worker.doctor.cards import CARDS, GIB, read
from worker.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("L40S", 1, "L40S"),
        ("l4", 1, "L4"),
        ("4090", 1, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", 1, "RTX 4090"),
        ("NVIDIA A100 80GB PCIe", 1, "A100"),
        ("NVIDIA A100-SXM4-80GB", 1, "A100"),
        ("2xA100", 2, "A100"),
        ("4 x NVIDIA H100 80GB HBM3", 4, "H100"),
        ("NVIDIA H100 NVL", 1, "H100 NVL"),
        ("NVIDIA RTX 6000 Ada Generation", 1, "RTX 6000 Ada"),
        ("A6000", 1, "RTX A6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1, "RTX PRO 6000"),
    ],
)
def test_a_card_by_its_names(text: str, count: int, name: str) -> None:
    """RunPod's id, its short name, and several of a card are understood."""
    found = read(text)

    assert (count, name) == (found[0], found[1].name)


def test_a_number_is_a_size() -> None:
    """`GPU=48` is a card of 48 GB."""
    count, card = read("2x22.5GB")

    assert (2, 22.5 * GIB) == (count, card.memory)


@pytest.mark.parametrize("text", ["L40X", "many", "0x", "x"])
def test_no_card(text: str) -> None:
    """A wrong name is a sentence that shows what a right one looks like."""
    with pytest.raises(SettingsError, match=r"GPU=.* a name such as L40S"):
        read(text)


def test_every_card_is_found_by_its_own_name() -> None:
    """No card hides another."""
    assert [read(card.name)[1] for card in CARDS] == list(CARDS)
