"""The page of a study: tables, comparisons with the paper's numbers, and accuracy over rounds."""

from pathlib import Path
from typing import Any

import altair as alt

from fedgh.core.records import Round
from fedgh.report import pays_charts
from fedgh.report.charts import AnyChart, accuracy_over_rounds, round_axis
from fedgh.report.page import Figure, Page, Part, Section, Table, sheet_table
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun
from fedgh.studies import convergence, pays
from fedgh.studies.reproduce import Result
from fedgh.studies.result import Line
from fedgh.studies.study import Setting, Study
from fedgh.studies.sweep import Trial


def page(result: Result) -> Page:
    """Return the page of a study's result, with every table and chart."""
    lead = " ".join(result.study.about.split())
    sections = [Section("about", "What was run", "\n".join(result.provenance()))]
    figures = _overview(result)
    for number, sheet in enumerate(result.sheets):
        table = sheet_table(sheet)
        parts: list[Part] = [table] if number else [*figures, table]
        sections.append(Section(f"sheet-{number}", sheet.title, parts=parts))
    sections += _curves(result)
    missing = [[name, reason] for name, reason in result.outcome.missing.items()]
    if missing:
        table = Table(["run", "reason"], missing)
        sections.append(Section("missing", "Without a result", parts=[table]))
    return Page(result.study.title, lead, sections)


def _overview(result: Result) -> list[Figure]:
    """Return the charts that answer the study's question."""
    if result.study.kind == "convergence":
        return [_gradient(trial, run.records()) for trial, run in result.outcome.runs]
    if result.study.kind == "pays":
        entries = pays.entries(result.study, result.outcome)
        return pays_charts.figures(result.request.name, result.study.methods, entries)
    if not any(line.accuracy is not None for line in result.lines):
        return []
    name = f"{result.request.name}-accuracy"
    if result.study.axis is not None:
        caption = f"Accuracy over the {result.study.axis}."
        if not result.study.source.startswith("beyond"):
            caption += " The paper has a figure of this, but no numbers."
        return [Figure(name, caption, _over_axis(result, result.study.axis), whole_width=True)]
    caption = "Accuracy of each method: ours after the last round, and the paper's."
    return [Figure(name, caption, _compared_with_paper(result), whole_width=True)]


def _compared_with_paper(result: Result) -> alt.FacetChart:
    """Return a chart with a panel for each setting and a row for each method."""
    rows: list[dict[str, Any]] = []
    for line in result.lines:
        key = {"setting": line.setting.title, "method": line.method}
        if line.ours is not None and line.accuracy is not None:
            ours = {"whose": "ours", "accuracy": line.accuracy}
            rows.append({**key, **ours, **_interval(line)})
        if line.paper.accuracy is not None:
            rows.append({**key, "whose": "the paper's", "accuracy": line.paper.accuracy})
    scale = alt.Scale(zero=False, padding=12)
    title = "accuracy, %"
    base = alt.Chart().encode(
        y=alt.Y("method:N", sort=result.study.methods, title=None, axis=alt.Axis(labelLimit=260))
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X("accuracy:Q", scale=scale, title=title),
        color=alt.Color("whose:N", title=None),
        shape=alt.Shape("whose:N", title=None),
        tooltip=["method:N", "whose:N", alt.Tooltip("accuracy:Q", format=".2f")],
    )
    intervals = base.mark_rule().encode(x=alt.X("low:Q", scale=scale, title=title), x2="high:Q")
    titles = [case.title for case in result.study.settings]
    facets: alt.FacetChart = (
        alt.layer(intervals, points, data={"values": rows})
        .properties(width=520)
        .facet(facet=alt.Facet("setting:N", title=None, sort=titles), columns=1)
        .resolve_scale(x="independent")
        .properties(description="Our accuracy and the paper's, by method and setting")
    )
    return facets


def _over_axis(result: Result, axis: str) -> alt.FacetChart:
    """Return a chart with a panel for each data set and a line for each method.

    A setting without a value on the axis is a dashed line across all panels.
    """
    placed = [case for case in result.study.settings if case.x is not None]
    panels = list(dict.fromkeys(_panel(case) for case in placed))
    rows = [
        {
            "data": panel,
            "x": line.setting.x,
            "accuracy": line.accuracy,
            **_interval(line),
            "method": line.method if line.setting in placed else _across(line, result.study),
        }
        for line in result.lines
        for panel in ([_panel(line.setting)] if line.setting in placed else panels)
        if line.accuracy is not None
    ]
    same_data = len({case.experiment for case in placed}) == 1  # so accuracies are comparable
    base = alt.Chart().encode(
        y=_accuracy("accuracy"),
        color=alt.Color("method:N", title=None, sort=result.study.methods),
    )
    lines = (
        base.mark_line(point=True)
        .encode(
            x=_axis(result.study, axis),
            tooltip=["method:N", "x:Q", alt.Tooltip("accuracy:Q", format=".2f")],
        )
        .transform_filter("isValid(datum.x)")
    )
    intervals = (
        base.mark_rule()
        .encode(x=_axis(result.study, axis), y=_accuracy("low"), y2="high:Q")
        .transform_filter("isValid(datum.x)")
    )
    across = (
        base.mark_rule(strokeDash=[4, 4])
        .encode(tooltip=["method:N", alt.Tooltip("accuracy:Q", format=".2f")])
        .transform_filter("!isValid(datum.x)")
    )
    # A layer without data would have an axis without end.
    layers = [intervals, lines, *([across] if any(row["x"] is None for row in rows) else [])]
    facets: alt.FacetChart = (
        alt.layer(*layers, data={"values": rows})
        .properties(width=320, height=260)
        .facet(column=alt.Column("data:N", title=None, sort=panels))
        .resolve_scale(x="independent", y="shared" if same_data else "independent")
        .properties(description=f"Accuracy over the {axis}, by method and data set")
    )
    return facets


def _across(line: Line, study: Study) -> str:
    """Return the label of a horizontal line: the setting, and the method if it has several."""
    title = line.setting.title
    return title if len(study.methods_of(line.setting)) == 1 else f"{line.method} {title}"


def _interval(line: Line) -> dict[str, float]:
    """Return our accuracy minus and plus its standard deviation over seeds."""
    std = 100 * (line.ours.accuracy_std or 0.0) if line.ours else 0.0
    mean = line.accuracy or 0.0
    return {"low": mean - std, "high": mean + std}


def _accuracy(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title="accuracy, %", scale=alt.Scale(zero=False))


def _axis(study: Study, title: str) -> alt.X:
    if study.scale == "linear":
        return alt.X("x:Q", title=title)
    # Ticks at the values of the settings: the default ticks of a logarithmic axis are far apart.
    values = sorted({case.x for case in study.settings if case.x is not None})
    scale = alt.Scale(type="log", nice=False, padding=12)
    return alt.X("x:Q", title=title, scale=scale, axis=alt.Axis(values=values, format="~g"))


def _panel(case: Setting) -> str:
    return case.title.partition(",")[0]


def _gradient(trial: Trial, records: list[Round]) -> Figure:
    """Return a chart of the squared gradient norm, its running mean, and the fit."""
    analysis = convergence.analyse(records, trial.config.local.lr)
    rows = [
        {"round": number, "series": series, "value": value}
        for number in range(1, analysis.rounds + 1)
        for series, value in (
            ("each round", analysis.gradient[number - 1]),
            ("running mean", analysis.running_mean[number - 1]),
            ("fit a / T + b", analysis.fit.a / number + analysis.fit.b),
        )
    ]
    chart = (
        alt.Chart({"values": rows})
        .mark_line(point=True)
        .encode(
            x=round_axis(rows, "rounds T"),
            y=alt.Y("value:Q", title="squared gradient norm"),
            color=alt.Color("series:N", title=None),
            tooltip=["series:N", "round:Q", alt.Tooltip("value:Q", format=".4f")],
        )
        .properties(
            width="container",
            height=280,
            description="Squared gradient norm over rounds, its running mean and the fit to it",
        )
    )
    caption = f"{trial.setting}, seed {trial.seed}: mean over clients at the start of each round."
    return Figure(f"gradient-{trial.setting}-{trial.seed}", caption, chart)


def _curves(result: Result) -> list[Section]:
    """Return charts of accuracy over rounds.

    There is one for each method, with a line for each setting, if the study has one method or an
    axis; otherwise one for each setting, with a line for each method.
    """
    study, name = result.study, result.request.name
    if study.kind != "accuracy":
        return []
    titles = {case.name: case.title for case in study.settings}
    by_method = len(study.methods) == 1 or study.axis is not None
    charts: dict[str, tuple[str, list[tuple[Trial, RunFolder]]]] = {}
    if by_method:
        for method in study.methods:
            chart_name = f"{name}-rounds" if len(study.methods) == 1 else f"{name}-{method}-rounds"
            of_method = [pair for pair in result.outcome.runs if pair[0].label == method]
            charts[chart_name] = (method, of_method)
    else:
        for case in study.settings:
            of_setting = result.outcome.of_setting(case.name).runs
            charts[f"{name}-{case.name}-rounds"] = (case.title, of_setting)

    def chart(runs: list[tuple[Trial, RunFolder]]) -> AnyChart:
        lines: dict[str, list[NamedRun]] = {}
        for trial, run in runs:
            label = titles[trial.setting] if by_method else trial.label
            lines.setdefault(label, []).append(NamedRun(label, run))
        return accuracy_over_rounds(lines)

    figures = [
        Figure(
            _id(chart_name),
            f"{title}: mean accuracy over all clients.",
            chart(runs),
            whole_width=True,
        )
        for chart_name, (title, runs) in charts.items()
        if runs
    ]
    return [Section("rounds", "Over rounds", parts=figures)] if figures else []


def _id(name: str) -> str:
    return name.replace(".", "-")


def write(result: Result, path: Path, figure_folder: Path) -> list[Path]:
    """Write the page, and its charts as SVG files; return the paths of the charts."""
    from fedgh.report import figures
    from fedgh.report.page import write as write_page

    study_page = page(result)
    write_page(study_page, path)
    return figures.save_all(study_page, figure_folder, "svg")
