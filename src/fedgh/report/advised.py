"""What a rehearsal says, as a table and in words."""

from fedgh.formats import human_bytes, percent
from fedgh.studies.advice import REFERENCE, Advice
from fedgh.tables import Column, Sheet

COLUMNS = (
    *(Column("method"), Column("shares"), Column("accuracy"), Column("all classes")),
    *(Column("gain, test"), Column("gain, validation"), Column("bytes/client")),
)


def table(advice: Advice) -> Sheet:
    """The methods side by side; a dash where there is no number."""
    return Sheet(
        "advice",
        "What a federation would gain over training alone, in points",
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


def words(advice: Advice) -> str:
    """The recommendation, why, what it does not know, and where the files are."""
    lines = [
        f"recommended  {advice.recommendation or 'do not federate'}",
        f"why          {advice.reason}",
        *(f"but          {caveat}" for caveat in advice.caveats),
        "[ , ]        95% interval; bytes are those of all rounds of the experiment",
        f"written to   {advice.folder / 'advice'}.csv and .json",
    ]
    return "\n".join(lines)
