"""What figures of images show of a data set and of a finished run."""

from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from experiments.figures import images
from experiments.training.spec import RunSpec


def photos(path):
    for label in "abcd":
        (path / label).mkdir(parents=True)
        for number in range(3):
            turned = Image.Exif()
            turned[0x0112] = 6
            Image.new("RGB", (40, 20), (200, 10, 10)).save(path / label / f"{number}.jpg", exif=turned)
    return f"folder:{path}"


def test_own_photographs_are_upright_and_few_of_few_classes_are_enough(tmp_path):
    dataset = photos(tmp_path / "photos")
    rows, names = images.sample_images(dataset, classes=9, per_class=5)
    assert len(rows) == len(names) == 2 and [len(row) for row in rows] == [5, 5]
    height, width, _ = rows[0][0].shape
    assert height > width
    run = SimpleNamespace(spec=RunSpec(dataset, steps=1), embeddings=torch.rand(6, 2))
    queries, neighbours, correct = images.neighbours(run, queries=4, k=50)
    assert correct.shape == (4, 5) and np.shape(neighbours)[:2] == (4, 5) and len(queries) == 4


def test_the_nearest_neighbour_is_another_image_of_the_gallery():
    labels = np.arange(150).repeat(2)  # of the test classes
    run = SimpleNamespace(spec=RunSpec("glyphs", images_per_class=2), embeddings=torch.eye(150)[labels])
    queries, neighbours, correct = images.neighbours(run, queries=9, k=1)
    assert correct.all() and not any(np.array_equal(query, row[0]) for query, row in zip(queries, neighbours))
