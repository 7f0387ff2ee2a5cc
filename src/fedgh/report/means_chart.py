"""A chart of the class means that clients send, projected to a plane, at a few rounds."""

from dataclasses import dataclass

import altair as alt
import torch
from torch import Tensor

from fedgh.core import wire
from fedgh.core.threads import one_thread
from fedgh.core.types import Payload
from fedgh.errors import RunError, WireError
from fedgh.report.charts import Rows
from fedgh.runs.means import MAX_PAIRS
from fedgh.runs.read import NamedRun

MAX_PANELS = 4
MAX_POINTS = 800
"""Class means in a panel; more of them would hide one another."""

PAIRS = wire.Dim("pairs", MAX_PAIRS)
SPEC = {
    "clients": wire.Field(torch.int32, (PAIRS,)),
    "classes": wire.Field(torch.int32, (PAIRS,)),
    "means": wire.Field(torch.float32, (PAIRS, wire.Dim("width", 2**20))),
}
MAX_IN_LEGEND = 12
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]


@dataclass(frozen=True)
class Projection:
    """The class means of some rounds, projected to the two principal components of all rounds."""

    rows: Rows
    explained: float  # the share of the variance in the plane
    left_out: int  # points that were omitted from the panel with the most points


def project(run: NamedRun) -> Projection | None:
    """Project the class means in the run folder to their principal components.

    Return None if the folder has none. Raise RunError if they are not valid.
    """
    try:
        by_round = {round: _checked(means, run) for round, means in run.folder.means().items()}
    except WireError as error:
        raise RunError(f"{run.folder.path / 'means'} cannot be read ({error})") from None
    if not by_round:
        return None
    all_means = [means["means"] for means in by_round.values()]
    if len({means.shape[1] for means in all_means}) > 1:
        raise RunError(f"{run.folder.path / 'means'} holds class means of different widths")
    plane, centre, explained = best_plane(torch.cat(all_means))
    rows: Rows = []
    max_points = 0
    for round in _spread_out(list(by_round)):
        means = by_round[round]
        max_points = max(max_points, len(means["means"]))
        shown = torch.linspace(0, len(means["means"]) - 1, MAX_POINTS).round().long().unique()
        points = (means["means"][shown].double() - centre) @ plane
        pairs = zip(means["clients"][shown].tolist(), means["classes"][shown].tolist(), strict=True)
        for (client, label), (x, y) in zip(pairs, points.tolist(), strict=True):
            name = run.identity.classes[label]
            rows.append({"round": round, "client": client, "class": name, "x": x, "y": y})
    return Projection(rows, explained, max(0, max_points - MAX_POINTS))


def means_chart(run: NamedRun, projection: Projection) -> alt.FacetChart:
    """Return a panel for each round, all with the same plane and the same scale."""
    classes = run.identity.classes
    few = len(classes) <= MAX_IN_LEGEND
    legend = alt.Legend(orient="right", symbolLimit=0, labelLimit=120) if few else None
    hovered = alt.selection_point(fields=["class"], on="pointerover", clear="pointerout")
    axis = alt.Axis(labels=False, ticks=False, title=None, domain=False, tickCount=4)
    shapes = [SHAPES[label % len(SHAPES)] for label in range(len(classes))]
    points = (
        alt.Chart()
        .mark_point(filled=True, size=55)
        .encode(
            x=alt.X("x:Q", axis=axis),
            y=alt.Y("y:Q", axis=axis),
            color=alt.Color("class:N", scale=alt.Scale(domain=classes), legend=legend),
            shape=alt.Shape(
                "class:N", scale=alt.Scale(domain=classes, range=shapes), legend=legend
            ),
            opacity=alt.condition(hovered, alt.value(0.85), alt.value(0.12)),
            tooltip=["class:N", "client:Q", "round:Q"],
        )
        .add_params(hovered)
        .properties(width=270, height=230)
    )
    header = alt.Header(labelExpr="'round ' + datum.value")
    panels: alt.FacetChart = points.facet(
        facet=alt.Facet("round:O", title=None, header=header),
        columns=2,
        data={"values": projection.rows},
    ).properties(description="Class means that the clients sent, on a plane, at a few rounds.")
    return panels


def _checked(means: Payload, run: NamedRun) -> Payload:
    """Return the class means; raise WireError if fedgh could not have written them."""
    wire.check(means, SPEC)
    labels, classes = means["classes"], len(run.identity.classes)
    if not len(labels):
        raise WireError("no class means")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise WireError(f"labels outside 0..{classes - 1}")
    return means


def best_plane(means: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the two principal components [width, 2], the mean, and the variance they explain."""
    means = means.double()
    centre = means.mean(0)
    with one_thread():  # on a busy machine several threads would wait for one another
        scatter = (means - centre).T @ (means - centre)
        values, directions = torch.linalg.eigh(scatter)  # ascending
    plane = directions[:, -2:].flip(1)
    # The sign of an eigenvector is arbitrary: choose one, so that pages are repeatable.
    plane = plane * plane.gather(0, plane.abs().argmax(0, keepdim=True)).sign()
    if plane.shape[1] < 2:  # a representation of a single number
        plane = torch.cat([plane, torch.zeros_like(plane)], dim=1)
    total = float(values.sum())
    return plane, centre, float(values[-2:].sum()) / total if total > 0 else 1.0


def _spread_out(rounds: list[int]) -> list[int]:
    """Return at most `MAX_PANELS` of these rounds, evenly spaced from the first to the last."""
    positions = torch.linspace(0, len(rounds) - 1, min(MAX_PANELS, len(rounds))).round().long()
    return [rounds[position] for position in positions.unique().tolist()]
