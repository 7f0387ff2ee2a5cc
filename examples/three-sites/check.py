"""Check what a site has predicted and exported after the rehearsal.

check.py SITE   SITE has new/CLASS/ with images, new.csv with their predictions, and export/ with
                the model as torch.export; the classes must be right for most images, and the
                exported model must give the same ones without fedgh
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

REQUIRED = 0.8
"""Share of the new images that must be classified correctly."""


def check(site: Path) -> str:
    """Return a line about the result; exit with a message if it is wrong."""
    with (site / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    files, predicted = [Path(row["file"]) for row in rows], [row["class"] for row in rows]
    right = sum(name == file.parent.name for file, name in zip(files, predicted, strict=True))
    if not rows or right < REQUIRED * len(rows):
        sys.exit(f"only {right} of {len(rows)} new images are classified correctly")
    (exported,) = (site / "export").glob("*.pt2")
    if exported_classes(exported, files) != predicted:
        sys.exit(f"{exported} gives other classes than fedgh flower predict")
    return f"{right} of {len(rows)} new images are classified correctly, also by {exported}"


def exported_classes(exported: Path, files: list[Path]) -> list[str]:
    """Return the classes that an exported model predicts for images."""
    texts = {"fedgh.json": ""}
    program = torch.export.load(exported, extra_files=texts).module()
    about = json.loads(texts["fedgh.json"])
    _, height, width = about["input"]["shape"]
    pixels = [np.array(Image.open(file).convert("RGB").resize((width, height))) for file in files]
    logits = program(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
    return [about["classes"][label] for label in logits.argmax(1).tolist()]


if __name__ == "__main__":
    print(check(Path(sys.argv[1])))
