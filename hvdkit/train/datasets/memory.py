"""Images in memory: a batch is a few tensor operations, whatever its size."""

import zlib
from dataclasses import dataclass

import torch
from torch.nn.functional import interpolate, pad


@dataclass(frozen=True, kw_only=True)
class MemorySource:
    """Samples as two tensors, and how they are augmented."""

    images: torch.Tensor
    """uint8, count x channels x height x width."""

    labels: torch.Tensor
    """int64, count."""

    shift: int
    """Pixels by which augmentation moves an image at most, up, down, left and right; black moves in."""

    flip: bool
    """Whether augmentation mirrors half of the images."""

    side: int | None = None
    """Side that batches are resized to; None leaves the images as they are."""

    count: int | None = None
    """Samples of an epoch, if more than there are images: these then come again and again."""

    in_memory = True

    def __len__(self) -> int:
        return self.count or len(self.labels)

    def batch(self, indices: torch.Tensor, draws: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if self.count is not None:
            indices = indices % len(self.labels)
        images, labels = self.images.index_select(0, indices), self.labels.index_select(0, indices)
        if draws is not None:
            images = _moved(images, self.shift, draws[:, 0], draws[:, 1], draws[:, 2] < 0.5 if self.flip else None)
        if self.side is not None:
            images = interpolate(images, (self.side, self.side), mode="nearest")
        return images, labels

    def fingerprint(self) -> int:
        return zlib.crc32(self.labels.numpy())


def _moved(
    images: torch.Tensor, shift: int, down: torch.Tensor, right: torch.Tensor, mirrored: torch.Tensor | None
) -> torch.Tensor:
    """Every image cut out of its padded self at a place of its own, in one gather."""
    count, channels, height, width = images.shape
    padded = pad(images, (shift,) * 4)
    rows = (down * (2 * shift + 1)).long()[:, None] + torch.arange(height)
    columns = torch.arange(width).expand(count, width)
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns)
    columns = columns + (right * (2 * shift + 1)).long()[:, None]
    places = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
    places = places.flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, places).view(images.shape)
