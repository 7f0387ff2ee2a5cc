"""Write the images of three sites: handwritten digits, at each site in another size.

make_images.py FOLDER   writes into participants/K/ of the federation's folder: images/CLASS/ to
                        train with, and new/CLASS/, a tenth, which no site trains or tests with
"""

import sys
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = (8, 16, 24)
"""Height and width of the images of each site."""


def write_images(federation: Path) -> None:
    """Give each site every third digit of the 1,797 that are part of fedgh."""
    with (resources.files("fedgh.data") / "digits.npz").open("rb") as file:
        archive = np.load(file)
        digits, labels = archive["x"].reshape(-1, 8, 8), archive["y"]
    for number, (digit, label) in enumerate(zip(digits, labels, strict=True)):
        site, position = number % len(SIZES), number // len(SIZES)
        folder = federation / "participants" / str(site) / ("images" if position % 10 else "new")
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((digit * (255 / 16)).astype(np.uint8))
        image.resize((SIZES[site], SIZES[site])).save(folder / str(label) / f"{number}.png")


if __name__ == "__main__":
    write_images(Path(sys.argv[1]))
