"""Reads IDX, the format of the MNIST files, plain or gzipped, and names the file when it is damaged."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from hvdkit.errors import InputError

_UNSIGNED_BYTE = 8


def find(folder: Path, name: str) -> Path | None:
    """The file `name` or `name`.gz, in the folder itself or where torchvision puts it."""
    for candidate in (folder / "MNIST" / "raw", folder):
        for path in (candidate / name, candidate / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def read(path: Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of an IDX file with that many dimensions; InputError when it is not whole."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, f"it does not unpack: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise _damaged(path, f"{len(content)} bytes are less than its header")
    magic, *shape = np.frombuffer(content[:header], dtype=">u4").tolist()
    if magic != (_UNSIGNED_BYTE << 8 | dimensions):
        raise _damaged(path, f"it begins with {magic:#010x}, not {_UNSIGNED_BYTE << 8 | dimensions:#010x}")
    if len(content) - header != math.prod(shape):
        sides = " x ".join(map(str, shape))
        raise _damaged(path, f"its header says {sides} bytes, but {len(content) - header} follow")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is damaged: {reason}; copy or download it again.")
