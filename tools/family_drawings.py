"""Write the drawings of docs/methods.md: what crosses between client and server in each family.

python -m tools.family_drawings
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "families"


@dataclass(frozen=True)
class Drawing:
    """The content of a drawing."""

    parts: tuple[tuple[str, bool], ...]  # the boxes at a client: text, and whether it is shared
    up: str
    down: str
    server: str  # what the server does, in lines separated by "|"


EXTRACTOR, HEADER = ("extractor", False), ("header", False)
SHARED_EXTRACTOR, SHARED_HEADER = ("extractor", True), ("header", True)

DRAWINGS = {
    "training alone": Drawing((EXTRACTOR, HEADER), "nothing", "nothing", "does nothing"),
    "whole networks": Drawing(
        (SHARED_EXTRACTOR, SHARED_HEADER), "network", "mean network", "averages|the networks"
    ),
    "partial networks": Drawing(
        (SHARED_EXTRACTOR, HEADER), "extractor", "mean extractor", "averages|the extractors"
    ),
    "headers": Drawing(
        (EXTRACTOR, SHARED_HEADER),
        "header or class means",
        "header",
        "averages headers,|or trains one",
    ),
    "class means": Drawing(
        (EXTRACTOR, HEADER), "class means", "global class means", "averages means,|or trains them"
    ),
    "statistics": Drawing(
        (EXTRACTOR, HEADER, ("fixed features", True)),
        "sums of features, once",
        "solved header",
        "adds up,|solves a header",
    ),
    "small shared network": Drawing(
        (EXTRACTOR, HEADER, ("small network", True)),
        "small network",
        "mean small network",
        "averages|small networks",
    ),
    "data-free distillation": Drawing(
        (EXTRACTOR, HEADER),
        "outputs, header or network",
        "targets or a generator",
        "collects outputs, or|trains on made inputs",
    ),
    "sub-networks": Drawing(
        (SHARED_EXTRACTOR, SHARED_HEADER),
        "a cut of the network",
        "a cut of the network",
        "averages each weight|over its owners",
    ),
    "public data on clients": Drawing(
        (EXTRACTOR, HEADER, ("public data", True)),
        "outputs for public data",
        "consensus",
        "combines|the outputs",
    ),
    "public data on the server": Drawing(
        (SHARED_EXTRACTOR, SHARED_HEADER),
        "network",
        "distilled network",
        "distils on|public data",
    ),
}

STYLE = """
    svg { --paper: #ffffff; --card: #f3f5fb; --line: #8b95b5; --ink: #1d2333; --soft: #4d5773;
          --shared: #3f51b5; --on-shared: #ffffff; --own: #dfe5f5; --up: #b25a00; }
    @media (prefers-color-scheme: dark) {
      svg { --paper: #1b1e2a; --card: #262b3c; --line: #7783a8; --ink: #eef1fa; --soft: #b9c2dc;
            --shared: #8c9eff; --on-shared: #12162a; --own: #39415a; --up: #ffb468; }
    }
    text { font: 15px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink);
           text-anchor: middle; }
    .name { font-weight: 600; }
    .soft { fill: var(--soft); }
    .paper { fill: var(--paper); }
    .card { fill: var(--card); stroke: var(--line); stroke-width: 1.5; }
    .own { fill: var(--own); stroke: var(--line); stroke-width: 1.5; }
    .shared { fill: var(--shared); }
    .on-shared { fill: var(--on-shared); font-weight: 600; }
    .up { stroke: var(--up); stroke-width: 3; fill: none; } .up-tip { fill: var(--up); }
    .down { stroke: var(--shared); stroke-width: 3; fill: none; } .down-tip { fill: var(--shared); }
  """


def file_name(family: str) -> str:
    """Return the name of a family's drawing."""
    return f"{family.replace(' ', '-')}.svg"


def svg(family: str) -> str:
    """Return the drawing of a family."""
    drawing = DRAWINGS[family]
    boxes = [("data", False), *drawing.parts]
    width = 480 / len(boxes)
    shapes = [
        _box(34 + number * width, width - 10, text, shared)
        for number, (text, shared) in enumerate(boxes)
    ]
    server = drawing.server.split("|")
    lines = [
        f'<text x="865" y="{104 + 20 * number - 10 * (len(server) - 1)}">{escape(line)}</text>'
        for number, line in enumerate(server)
    ]
    about = (
        f"A client sends {drawing.up} to the server. The server sends {drawing.down} to the "
        f"client. The server {drawing.server.replace('|', ' ')}."
    )
    crosses = drawing.up != "nothing"
    arrows = (
        '<path class="up" d="M534 72 H742"/><path class="up-tip" d="M756 72 l-16 -8 v16 Z"/>'
        '<path class="down" d="M756 122 H548"/><path class="down-tip" d="M534 122 l16 -8 v16 Z"/>'
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 176" role="img"
  aria-labelledby="title desc">
  <title id="title">What crosses: {escape(family)}</title>
  <desc id="desc">{escape(about)}</desc>
  <style>{STYLE}</style>
  <rect class="paper" width="980" height="176" rx="10"/>
  <rect class="card" x="18" y="14" width="510" height="148" rx="8"/>
  <text class="name" x="273" y="40">client</text>
  {"".join(shapes)}
  <rect class="card" x="768" y="14" width="194" height="148" rx="8"/>
  <text class="name" x="865" y="40">server</text>
  {"".join(lines)}
  {arrows if crosses else ""}
  <text x="645" y="60">{escape(drawing.up)}</text>
  <text x="645" y="146">{escape(drawing.down) if crosses else ""}</text>
</svg>
"""


def _box(x: float, width: float, text: str, shared: bool) -> str:
    kind, on = ("shared", "on-shared") if shared else ("own", "")
    lines = text.split(" ")
    first = 112 - 10 * (len(lines) - 1)
    words = "".join(
        f'<text class="{on}" x="{x + width / 2:g}" y="{first + 20 * number}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return f'<rect class="{kind}" x="{x:g}" y="62" width="{width:g}" height="86" rx="6"/>{words}'


def main() -> None:
    """Write all drawings."""
    for family in DRAWINGS:
        (FOLDER / file_name(family)).write_text(svg(family), encoding="utf-8")


if __name__ == "__main__":
    main()
