"""Synthetic digits: a stand-in for MNIST that a model can really learn, made from a font and a seed."""

import torch

SIDE = 28
_SCALE = 3  # a glyph of 7 x 5 becomes 21 x 15 pixels

_FONT = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""


def make(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` grey images (uint8, count x 28 x 28) and their labels; the same seed gives the same images.

    Place, brightness, noise and missing pixels vary, so that accuracy on images of another seed says
    whether training works.
    """
    random = torch.Generator().manual_seed(seed)
    glyphs = _glyphs()
    height, width = glyphs.shape[1:]
    labels = torch.randint(0, 10, (count,), generator=random)
    top = torch.randint(0, SIDE - height + 1, (count,), generator=random)
    left = torch.randint(0, SIDE - width + 1, (count,), generator=random)
    brightness = torch.randint(60, 146, (count, 1, 1), generator=random, dtype=torch.uint8)

    images = torch.zeros(count, SIDE, SIDE, dtype=torch.uint8)
    rows = top[:, None, None] + torch.arange(height)[None, :, None]
    columns = left[:, None, None] + torch.arange(width)[None, None, :]
    images[torch.arange(count)[:, None, None], rows, columns] = glyphs[labels] * brightness
    missing = torch.randint(0, 10, images.shape, generator=random, dtype=torch.uint8) < 4
    images[missing] = 0
    images += torch.randint(0, 111, images.shape, generator=random, dtype=torch.uint8)  # 145 + 110 fits a byte
    return images, labels


def _glyphs() -> torch.Tensor:
    rows = [line.split() for line in _FONT.split("\n") if line]
    pixels = [[[mark == "#" for mark in row[digit]] for row in rows] for digit in range(10)]
    small = torch.tensor(pixels, dtype=torch.uint8)
    return small.repeat_interleave(_SCALE, dim=1).repeat_interleave(_SCALE, dim=2)
