"""The advice of a rehearsal as a table and as text."""

from fedgh.formats import human_bytes, percent
from fedgh.studies.advice import REFERENCE, Advice
from fedgh.tables import Column, Sheet

COLUMNS = (
    *(Column("method"), Column("shares"), Column("accuracy"), Column("all classes")),
    *(Column("gain, test"), Column("gain, validation"), Column("bytes/client")),
)


def table(advice: Advice) -> Sheet:
    """Return a table with a row for each method; a missing number is a dash."""
    return Sheet(
        "advice",
        "Gain of a federation over training alone, in percentage points",
        COLUMNS,
        [
            [
                *(row.label, row.shares, percent(row.accuracy), percent(row.global_accuracy)),
                *(
                    None if row.label == REFERENCE else gain.points
                    for gain in (row.gain, row.validation_gain)
                ),
                human_bytes(row.bytes_per_client),
            ]
            for row in advice.rows
        ],
    )


def text(advice: Advice) -> str:
    """Return the recommendation, its reason, its caveats, and the paths of the files."""
    lines = [
        f"recommended  {advice.recommendation or 'do not federate'}",
        f"why          {advice.reason}",
        *(f"but          {caveat}" for caveat in advice.caveats),
        "[ , ]        95% interval; bytes are those of all rounds of the experiment",
        f"written to   {advice.folder / 'advice'}.csv and .json",
    ]
    return "\n".join(lines)
