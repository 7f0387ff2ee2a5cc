"""The accuracy of a newcomer as a table and as text."""

from fedgh.formats import percent
from fedgh.tables import Column, Sheet
from fedgh.trained.newcomer import NewcomerResult

COLUMNS = (Column("epochs", digits=0), Column("with the header"), Column("without"))


def curve(result: NewcomerResult) -> Sheet:
    """Return a table of the newcomer's accuracy after each of its rounds."""
    curves = zip(result.with_header, result.without_header, strict=True)
    return Sheet(
        "join",
        "Accuracy of the newcomer on its own test data",
        COLUMNS,
        [
            [number * result.epochs_per_round, percent(with_header), percent(without_header)]
            for number, (with_header, without_header) in enumerate(curves)
        ],
    )


def verdict(result: NewcomerResult) -> str:
    """Return a sentence about how soon the newcomer reaches the accuracy of the other clients."""
    return (
        f"The other clients have a mean accuracy of {percent(result.others)}, each on its own test "
        f"data. With the global header, the newcomer {_epochs(result.epochs_with)}; without it, "
        f"the newcomer {_epochs(result.epochs_without)}."
    )


def _epochs(number: int | None) -> str:
    if number is None:
        return "does not reach it in the epochs tried"
    return f"reaches it after {number} epochs"
