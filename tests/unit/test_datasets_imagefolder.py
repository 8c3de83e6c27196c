"""Folders of images: what counts as one, how they are cut and resized, and damaged files."""

import io
import os
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from hvdkit.errors import EXIT_ENVIRONMENT, EXIT_USAGE, HvdkitError, InputError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.datasets import sampling
from hvdkit.train.settings import TrainSettings


def load(folder, said=None, **others):
    settings = TrainSettings(data="imagefolder", data_dir=folder, **others)
    return datasets.load(settings, SingleEngine(), (said if said is not None else []).append)


def picture(path, colour=(0, 0, 0), size=(32, 32), **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **how)
    return path


def noise(width, height, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Two halves of two classes; the colour of an image tells which it is."""
    for half, count in (("train", 6), ("val", 3)):
        for number in range(count):
            picture(tmp_path / "pets" / half / "cat" / f"{number}.png", (number, 1, 0))
            picture(tmp_path / "pets" / half / "dog" / f"{number}.png", (number, 2, 0))
    return tmp_path / "pets"


def everything(source, draws=None):
    return source.batch(torch.arange(len(source)), draws)


def refused(said, folder, **others):
    with pytest.raises(HvdkitError) as failure:
        load(folder, **others)
    assert failure.value.exit_code == EXIT_USAGE
    assert said in str(failure.value)


def test_two_halves_are_read_in_the_order_of_their_names(folder):
    said = []
    data = load(folder, said, image_size=32)
    assert (data.name, data.classes, data.channels, data.image_size) == ("pets", 2, 3, 32)
    assert (len(data.train), len(data.test)) == (12, 6)
    images, labels = everything(data.train)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()
    assert images.shape == (12, 3, 32, 32)
    assert images[:, :2, 16, 16].tolist() == [[n, 1] for n in range(6)] + [[n, 2] for n in range(6)]
    assert labels.tolist() == [0] * 6 + [1] * 6
    some, some_labels = data.train.batch(torch.tensor([11, 0]), None)
    assert torch.equal(some, images[[11, 0]])
    assert some_labels.tolist() == [1, 0]
    assert said == []


def test_the_default_size_is_224(folder):
    data = load(folder)
    assert data.image_size == 224
    assert data.test.batch(torch.tensor([0]), None)[0].shape == (1, 3, 224, 224)


def test_what_is_not_an_image_or_hidden_is_left_out_and_said(folder):
    picture(folder / "train" / "cat" / "more" / "deeper.JPEG", format="JPEG")
    for name in ("train/cat/notes.txt", "train/cat/._1.png", "train/.cache/cat/1.png", "val/lost+found/lost"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("nothing")
    said = []
    data = load(folder, said)
    assert (len(data.train), len(data.test)) == (13, 6)
    (line,) = said
    assert "1 files are no images" in line
    assert str(folder / "train" / "cat" / "notes.txt") in line


def test_a_class_may_be_a_link_and_a_circle_of_links_is_harmless(folder):
    (folder / "train" / "cat").rename(folder.parent / "cats")
    (folder / "train" / "cat").symlink_to(folder.parent / "cats")
    (folder / "train" / "cat" / "back").symlink_to(folder)
    assert len(load(folder).train) == 12


def test_test_is_as_good_as_val_and_val_comes_first(folder):
    (folder / "val").rename(folder / "test")
    assert len(load(folder).test) == 6
    picture(folder / "val" / "cat" / "1.png")
    picture(folder / "val" / "dog" / "1.png")
    assert len(load(folder).test) == 2


@pytest.mark.parametrize("inner", ["", "train"])
def test_a_folder_without_halves_is_split_by_the_hash_of_paths(tmp_path, inner):
    names = [f"{inner}/{kind}/{number}.png".lstrip("/") for kind in ("cat", "dog") for number in range(60)]
    for number, name in enumerate(names):
        picture(tmp_path / name, (number, 0, 0), size=(1, 1))
    said = []
    data = load(tmp_path, said, image_size=1)
    kept = {number for number, name in enumerate(names) if zlib.crc32(os.fsencode(name)) % 10 == 0}
    assert set(everything(data.test)[0][:, 0, 0, 0].tolist()) == kept
    assert set(everything(data.train)[0][:, 0, 0, 0].tolist()) == set(range(120)) - kept
    (line,) = said
    assert f"{len(kept)} of 120 images are kept for it, about a tenth, chosen by the hash of their paths" in line
    picture(tmp_path / inner / "cat" / "another.png", size=(1, 1))
    assert kept <= set(everything(load(tmp_path, image_size=1).test)[0][:, 0, 0, 0].tolist())


def test_folders_that_cannot_be_trained_on_are_refused(tmp_path, folder, monkeypatch):
    monkeypatch.delenv("HVDKIT_DATA_DIR", raising=False)
    refused("--data-dir must name a folder with train/CLASS", None)
    refused(f"--data-dir: there is no folder {tmp_path}/nowhere on ", tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(f"{empty} has no folders of images, one a class.", empty)
    (empty / "cat").mkdir()
    refused(f"{empty}/cat has no images (.png, .jpg, .jpeg, .bmp, .webp); fill it or remove it.", empty)
    picture(empty / "cat" / "1.png")
    refused(f"{empty}/cat has too few images (1) to keep a tenth for testing", empty)
    picture(folder / "val" / "cow" / "1.png")
    refused(f"{folder}/val has a class 'cow', {folder}/train has not; both need the same classes.", folder)
    (folder / "train" / "cow").mkdir()
    refused(f"{folder}/train/cow has no images", folder)


def test_the_folder_may_come_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("HVDKIT_DATA_DIR", str(folder))
    assert load(None).name == "pets"
    monkeypatch.setenv("HVDKIT_DATA_DIR", str(folder / "none"))
    refused(f"HVDKIT_DATA_DIR: there is no folder {folder}/none", None)


@pytest.mark.parametrize(
    ("what", "kind"),
    [(what, kind) for what in ("cut", "text", "empty", "dangling") for kind in ("png", "jpg")] + [("flipped", "png")],
)
def test_a_file_that_cannot_be_decoded_is_named(folder, what, kind):
    path = folder / "train" / "cat" / f"bad.{kind}"
    Image.fromarray(noise(40, 30)).save(path)
    content = path.read_bytes()
    if what == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif what == "flipped":
        path.write_bytes(content[:1000] + bytes([content[1000] ^ 4]) + content[1001:])
    elif what in ("text", "empty"):
        path.write_text("<html>not found</html>" if what == "text" else "")
    else:
        path.unlink()
        path.symlink_to("nothing")
    data = load(folder, image_size=32)
    place = data.train.files.tolist().index(f"train/cat/bad.{kind}".encode())
    with pytest.raises(InputError) as failure:
        data.train.batch(torch.tensor([0, place]), None)
    said = "cannot be read: No such file" if what == "dangling" else "is damaged: "
    assert str(failure.value).startswith(f"{path} {said}")
    assert "\n" not in str(failure.value)


def test_every_kind_of_image_becomes_three_bytes_a_pixel(folder):
    kinds = folder / "val" / "dog"
    for path in kinds.iterdir():
        path.unlink()
    grey = np.full((32, 32), 100, dtype=np.uint8)
    Image.fromarray(grey).save(kinds / "a-grey.png")
    Image.fromarray(grey.astype(np.uint16) << 8).save(kinds / "b-16-bits.png")
    Image.fromarray(np.dstack([grey] * 3 + [grey * 0])).save(kinds / "c-alpha.png")
    Image.fromarray(grey).convert("P").save(kinds / "d-palette.png")
    Image.fromarray(grey).save(kinds / "e-grey.jpg")
    Image.fromarray(np.dstack([grey] * 3)).save(kinds / "f-bitmap.bmp")
    Image.fromarray(np.dstack([grey] * 3)).save(kinds / "g.webp", lossless=True)
    Image.fromarray(255 - np.dstack([grey] * 3 + [grey * 0 + 255]), mode=None).convert("CMYK").save(kinds / "h-ink.jpg")
    Image.fromarray(np.dstack([grey] * 3)).save(kinds / "i-wrong-name.jpg", format="PNG")
    images, labels = everything(load(folder, image_size=32).test)
    shown = images[labels == 1]
    assert len(shown) == 9
    assert (shown[:7] == 100).all()
    assert (shown[8] == 100).all()
    assert ((shown[7].int() - 155).abs() <= 2).all()


def coordinates(width, height):
    """An image whose colour tells the place."""
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.dstack([across, down, across * 0]).astype(np.uint8))


def test_evaluation_sees_the_middle_at_the_right_scale(folder):
    """The shorter side becomes 256/224 of the size, and the middle of that is cut out: 7/8 of the shorter side."""
    coordinates(200, 128).save(folder / "val" / "cat" / "0.png")
    image = load(folder, image_size=32).test.batch(torch.tensor([0]), None)[0][0].float()
    step = 112 / 32
    centres = torch.arange(32) * step + step / 2 - 0.5
    assert (image[0] - (44 + centres)).abs().max() <= 1.5  # rounding, and the filter at the edge
    assert (image[1] - (8 + centres)[:, None]).abs().max() <= 1.5


def test_images_no_larger_than_asked_for_are_only_resized(folder):
    pixels = noise(32, 32)
    Image.fromarray(pixels).save(folder / "train" / "cat" / "0.png")
    Image.fromarray(noise(20, 30)).save(folder / "train" / "cat" / "1.png")
    source = load(folder, image_size=32).train
    mirrored = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.49], [0.5, 0.5, 0.5, 0.5, 0.5]], dtype=torch.float64)
    for draws in (None, mirrored):
        exact, larger = source.batch(torch.tensor([0, 1]), draws)[0].permute(0, 2, 3, 1).numpy()
        assert np.array_equal(exact, pixels if draws is None else pixels[:, ::-1])
        assert np.array_equal(larger, np.asarray(Image.fromarray(noise(20, 30)).resize((32, 32), Image.BILINEAR)))


def test_training_sees_parts_of_random_area_shape_and_place(folder):
    """On an image whose colour tells the place, the corners of a crop tell where it was cut."""
    coordinates(250, 200).save(folder / "train" / "cat" / "0.png")
    source = load(folder, image_size=24).train
    draws = sampling.draws(1, 0, torch.arange(600))
    crops = source.batch(torch.zeros(600, dtype=torch.int64), draws)[0].float()
    left, right = crops[:, 0, :, 0].mean(1), crops[:, 0, :, -1].mean(1)
    top, bottom = crops[:, 1, 0].mean(1), crops[:, 1, -1].mean(1)
    mirrored = left > right
    assert torch.equal(mirrored, (draws[:, 4] < 0.5))
    left, right = torch.minimum(left, right), torch.maximum(left, right)
    width, height = (right - left) * 24 / 23, (bottom - top) * 24 / 23  # from the middles of the outer pixels
    share = width * height / (250 * 200)
    assert share.min() > 0.06
    assert share.max() > 0.9
    assert abs(share.mean() - 0.52) < 0.05
    assert (width / height).min() > 0.70
    assert (width / height).max() < 1.40
    assert left.min() < 5
    assert right.max() > 245
    assert torch.equal(crops, source.batch(torch.zeros(600, dtype=torch.int64), draws)[0].float())


def test_a_large_jpeg_is_decoded_small_but_looks_the_same(folder):
    """The shortcut of decoding to a fraction of the size changes time and not the picture."""
    small = Image.fromarray(noise(20, 16))
    smooth = small.resize((1600, 1280), Image.Resampling.BICUBIC)
    for name, how in (("0.png", {}), ("0.jpg", {"quality": 95})):
        (folder / "val" / "cat" / "0.png").unlink(missing_ok=True)
        smooth.save(folder / "val" / "cat" / name, **how)
    smooth.save(folder / "val" / "cat" / "1.png")
    source = load(folder, image_size=32).test
    for draws in (None, sampling.draws(3, 0, torch.zeros(2, dtype=torch.int64))):
        jpeg, png = source.batch(torch.tensor([0, 1]), draws)[0].float()
        assert (jpeg - png).abs().mean() < 3


def test_a_batch_may_be_empty(folder):
    images, labels = load(folder, image_size=32).train.batch(torch.empty(0, dtype=torch.int64), None)
    assert images.shape == (0, 3, 32, 32)
    assert labels.shape == (0,)


def test_names_of_any_bytes_are_read(folder):
    strange = os.fsencode(folder) + b"/train/cat/\xff \xc3\xa9.png"
    (folder / "train" / "cat" / "5.png").rename(os.fsdecode(strange))
    images, _ = everything(load(folder, image_size=32).train)
    assert 5 in images[:6, 0, 0, 0].tolist()


def test_after_the_first_epoch_the_original_is_not_needed(folder, tmp_path):
    data = load(folder, image_size=32, cache_dir=tmp_path / "disk")
    first = everything(data.train)[0]
    folder.rename(tmp_path / "gone")
    assert torch.equal(everything(data.train)[0], first)
    with pytest.raises(InputError, match=r"pets/val/cat/0.png cannot be read: No such file"):
        data.test.batch(torch.tensor([0]), None)
    copies = [path for path in (tmp_path / "disk").rglob("*") if path.is_file()]
    assert len(copies) == 12
    originals = {path.read_bytes() for path in (tmp_path / "gone" / "train").rglob("*.png")}
    assert {path.read_bytes() for path in copies} == originals


def test_folders_of_the_same_name_do_not_share_copies(folder, tmp_path):
    load(folder, image_size=32, cache_dir=tmp_path / "disk").train.batch(torch.tensor([0]), None)
    other = tmp_path / "other" / "pets"
    other.parent.mkdir()
    folder.rename(other)
    picture(other / "train" / "cat" / "0.png", (99, 99, 99))
    image = load(other, image_size=32, cache_dir=tmp_path / "disk").train.batch(torch.tensor([0]), None)[0]
    assert (image == 99).all()


def test_a_cache_folder_that_cannot_be_written_is_said_before_training(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HvdkitError, match=r"cannot be written \(Not a directory\); .* --cache-dir") as failure:
        load(folder, cache_dir=tmp_path / "file" / "disk")
    assert failure.value.exit_code == EXIT_ENVIRONMENT


def test_a_damaged_copy_does_not_stay(folder, tmp_path):
    data = load(folder, image_size=32, cache_dir=tmp_path / "disk")
    data.train.batch(torch.tensor([0]), None)
    (copy,) = (tmp_path / "disk").rglob("*.png")
    copy.write_bytes(b"")
    with pytest.raises(InputError, match="is damaged: it is empty"):
        data.train.batch(torch.tensor([0]), None)
    data.train.batch(torch.tensor([0]), None)  # from the original, which is whole


def test_one_wrong_bit_never_crashes_the_decoder(folder):
    """torchvision.io's decoder dies of some of these."""
    path = folder / "train" / "cat" / "0.png"
    file = io.BytesIO()
    Image.fromarray(noise(8, 8)).save(file, format="PNG")
    content = file.getvalue()
    source = load(folder, image_size=32).train
    refused = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            source.batch(torch.tensor([0]), None)
        except InputError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 0.8 * len(content)
