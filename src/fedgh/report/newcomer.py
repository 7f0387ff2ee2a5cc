"""How a newcomer did, in words and as a table."""

from fedgh.formats import percent
from fedgh.tables import Column, Sheet
from fedgh.trained.newcomer import NewcomerResult

COLUMNS = (Column("epochs", digits=0), Column("with the header"), Column("without"))


def curve(joined: NewcomerResult) -> Sheet:
    """Accuracy after every round of the newcomer."""
    curves = zip(joined.with_header, joined.without_header, strict=True)
    return Sheet(
        "join",
        "The newcomer on its own test data",
        COLUMNS,
        [
            [number * joined.epochs_per_round, percent(a), percent(b)]
            for number, (a, b) in enumerate(curves)
        ],
    )


def verdict(joined: NewcomerResult) -> str:
    """How soon it has reached the others."""
    return (
        f"The others are at {percent(joined.others)}, each on its own test data. The newcomer "
        f"is there after {_epochs(joined.epochs_with)} with the global header, "
        f"{_epochs(joined.epochs_without)} without."
    )


def _epochs(number: int | None) -> str:
    return "no number of epochs tried" if number is None else f"{number} epochs"
