"""Users' data in all supported forms become the same tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fedgh import Source
from fedgh.data.own import all_classes, source_of, with_classes
from fedgh.errors import DataError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])
WORDS = np.array(["ant", "bee", "cat"])[Y]
IMAGES = np.arange(6 * 5 * 4 * 3, dtype=np.uint8).reshape(6, 5, 4, 3)  # [n, h, w, c]


class Pairs(Dataset[Any]):
    """A data set with class names, like those of torchvision."""

    classes = ("ant", "bee", "cat")

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(X[index]), int(Y[index])


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ((X, Y), "012"),
        ((torch.from_numpy(X), torch.from_numpy(Y)), "012"),
        ((X.tolist(), Y.tolist()), "012"),
        (([torch.from_numpy(row) for row in X], list(Y)), "012"),
        ((X.astype(np.int16), Y.astype(np.uint8)), "012"),
        (TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), "012"),
        ([(row, int(label)) for row, label in zip(X, Y, strict=True)], "012"),
        ((X, WORDS), Pairs.classes),
        ((X, WORDS.tolist()), Pairs.classes),
        (Pairs(), Pairs.classes),
        (Source("mine", torch.from_numpy(X), torch.from_numpy(Y), tuple("012")), "012"),
    ],
)
def test_all_forms_of_the_same_samples_give_equal_sources(
    data: Any, names: str | tuple[str, ...]
) -> None:
    source = source_of(data)
    assert source.x.equal(torch.from_numpy(X))
    assert source.y.equal(torch.from_numpy(Y))
    assert source.class_names == tuple(names)


def test_columns_of_a_pandas_table_are_inputs_and_labels() -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": [1.5, 2, 3], "b": [4, 5, 6], "kind": ["x", "y", "x"]})
    source = source_of((table[["a", "b"]], table["kind"]))
    assert source.x.tolist() == [[1.5, 4], [2, 5], [3, 6]]
    assert (source.y.tolist(), source.class_names) == ([0, 1, 0], ("x", "y"))
    with pytest.raises(DataError, match="give columns of a table"):
        source_of(table)


@pytest.mark.parametrize("images", [IMAGES, torch.from_numpy(IMAGES)])
def test_images_with_channels_last_are_transposed(images: Any) -> None:
    source = source_of((images, Y))
    assert source.images
    assert source.x.equal(torch.from_numpy(IMAGES).permute(0, 3, 1, 2))


def test_sixteen_bit_images_keep_their_upper_eight_bits(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    deep = image.fromarray(np.full((4, 4), 0x4080, np.uint16))
    assert deep.mode.startswith("I;16")
    assert source_of([(deep, "a")], image_size=4).x.eq(0x40).all()
    with pytest.raises(DataError, match="range of a 32-bit image is unknown"):
        source_of([(image.new("F", (4, 4)), "a")], image_size=4)


def test_a_subset_has_the_class_names_of_its_data_set() -> None:
    assert source_of(Subset(Pairs(), [1, 2])).class_names == Pairs.classes


def test_numeric_labels_in_a_file_are_positions_in_the_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    assert source_of(tmp_path / "mine.npz", ["no", "yes", "maybe"]).y.tolist() == Y.tolist()


def test_images_of_any_size_are_scaled() -> None:
    image = pytest.importorskip("PIL.Image")
    red = [(image.new("RGB", (9, 7 + n), (255, 0, 0)), "red") for n in range(3)]
    source = source_of([*red, (image.new("L", (4, 4), 128), "grey")], image_size=8)
    assert source.x.shape == (4, 3, 8, 8)
    assert source.x[0, :, 3, 3].tolist() == [255, 0, 0]
    assert source.x[3].eq(128).all()
    assert source.class_names == ("grey", "red")


def test_npz_files_and_image_folders_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=WORDS)
    assert source_of(tmp_path / "mine.npz").class_names == Pairs.classes
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image.new("RGB", (9, 9)).save(tmp_path / "photos" / name / "1.png")
    source = source_of(str(tmp_path / "photos"), image_size=4)
    assert (source.x.shape, source.class_names) == ((2, 3, 4, 4), ("cat", "dog"))


def test_a_hugging_face_data_set_is_converted() -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pictures = [image.new("RGB", (6, 5), (shade, 0, 0)) for shade in (10, 20, 30)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "ant"])}
    )
    table = {"image": pictures, "label": [0, 1, 0]}
    source = source_of(datasets.Dataset.from_dict(table, features=features), image_size=4)
    assert source.x[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert [source.class_names[label] for label in source.y] == ["cat", "ant", "cat"]
    # The federation's order of classes is another one.
    source = source_of(datasets.Dataset.from_dict(table, features=features), ["ant", "bee", "cat"])
    assert source.y.tolist() == [2, 0, 2]
    vectors = datasets.Dataset.from_dict({"embedding": X.tolist(), "label": WORDS.tolist()})
    assert source_of(vectors).x.equal(torch.from_numpy(X))
    with pytest.raises(DataError, match="which of the columns embedding, text, label"):
        source_of(
            vectors.add_column("text", ["a"] * 6).select_columns(["embedding", "text", "label"])
        )


def test_numeric_labels_are_positions_in_the_given_names() -> None:
    source = source_of((X, Y), ["no", "yes", "maybe", "never"])
    assert source.y.tolist() == Y.tolist()
    assert source.num_classes == 4
    source = source_of((X, WORDS), ["cat", "bee", "ant"])
    assert source.y.tolist() == [2, 1, 0, 2, 1, 0]


def test_classes_of_several_sources_are_sorted() -> None:
    sources = [source_of((X[:2], labels)) for labels in ([10, 2], [2, -1])]
    assert all_classes(sources) == ("-1", "2", "10")
    assert with_classes(sources[0], all_classes(sources)).y.tolist() == [2, 1]
    with pytest.raises(DataError, match="some clients have numbers as classes, others words"):
        all_classes([source_of((X[:2], ["b", "a"])), sources[0]])
    with pytest.raises(DataError, match="a name occurs twice"):
        source_of((X, Y), ["a", "a", "b"])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (lambda: 7, "a int is not supported"),
        (lambda: (X, Y, Y), "expected inputs and labels, got 3 values"),
        (lambda: (X, Y[:5]), "6 inputs and 5 labels"),
        (lambda: (X, Y + 0.5), "one integer or string per input, got float64"),
        (lambda: (X, X), "one integer or string per input"),
        (lambda: (Y, Y), r"inputs should be \[samples, ...\]"),
        (lambda: (WORDS[:, None], Y), "inputs should be numbers"),
        (lambda: ([X[0], X[1, :2]], Y[:2]), "inputs have different shapes"),
        (lambda: (X * np.nan, Y), "some inputs are not finite"),
        (lambda: [X[0]], "every item of a data set should be an input and its label"),
        (lambda: "nowhere", "nowhere does not exist"),
        (lambda: [(X[0], torch.tensor(0.5))], "one integer or string per input"),
        (lambda: (X[:2], np.array(["cat", None], object)), "some labels are missing"),
        (lambda: (np.array([[2**24 + 1]]), [0]), "integers above 16777216 lose digits"),
        (lambda: (torch.zeros(2, 3, dtype=torch.complex64), [0, 1]), "inputs should be numbers"),
        (lambda: (IMAGES[..., 0], Y), r"bytes of shape \(6, 5, 4\) are ambiguous"),
    ],
)
def test_unsupported_data_are_rejected_with_a_reason(data: Callable[[], Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        source_of(data())


def test_a_class_unknown_to_the_federation_is_rejected() -> None:
    with pytest.raises(DataError, match="class 'bee' is not one of ant, cat"):
        source_of((X, WORDS), ["ant", "cat"])
    with pytest.raises(DataError, match="labels from 0 to 2, but there are 2 classes"):
        source_of((X, Y), ["ant", "cat"])
