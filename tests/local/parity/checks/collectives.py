"""Every collective, in every dtype that it takes, by itself, in place, asynchronous and grouped."""

import shutil
import tempfile
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from harness import assert_equal, values, values_of_all

ALSO_UNFUSED = (
    "check_allreduce_asynchronous_in_another_order_on_each_rank",
    "check_large_tensors_survive_fusion_and_segments",
    "check_grouped_allreduce",
    "check_grouped_allgather",
)

REDUCIBLE = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
MOVABLE = (*REDUCIBLE, torch.uint8, torch.int8, torch.int16)


def stacked(*shape, dtype=torch.float32, seed=0):
    return torch.stack(values_of_all(*shape, dtype=dtype, seed=seed))


def check_allreduce_sum_in_every_dtype():
    for seed, dtype in enumerate(REDUCIBLE):
        for shape in ((), (7,), (3, 4), (2, 3, 4, 5)):
            mine = values(hvd.rank(), *shape, dtype=dtype, seed=seed)
            before = mine.clone()
            total = hvd.allreduce(mine, op=hvd.Sum, name=f"sum.{dtype}.{len(shape)}")
            assert_equal(total, stacked(*shape, dtype=dtype, seed=seed).sum(0, dtype=dtype), f"sum {dtype}")
            assert_equal(mine, before, f"the input of a sum in {dtype}")


def check_allreduce_average_in_every_dtype():
    for dtype in REDUCIBLE:
        average = hvd.allreduce(values(hvd.rank(), 9, dtype=dtype), name=f"average.{dtype}")
        exact = stacked(9, dtype=torch.float64).mean(0)
        # Integers are cut towards zero.
        assert_equal(average, (exact if dtype.is_floating_point else exact.trunc()).to(dtype), f"average {dtype}")


def check_allreduce_min_max_and_product_in_every_dtype():
    for dtype in REDUCIBLE:
        mine, everyone = values(hvd.rank(), 9, dtype=dtype), stacked(9, dtype=dtype)
        expected = {
            "Min": everyone.amin(0),
            "Max": everyone.amax(0),
            "Product": everyone.double().prod(0).to(dtype),
        }
        for name, reduced in expected.items():
            actual = hvd.allreduce(mine, op=getattr(hvd, name), name=f"{name}.{dtype}")
            assert_equal(actual, reduced, f"{name} {dtype}")


def check_allreduce_scales_before_and_after():
    actual = hvd.allreduce(
        values(hvd.rank(), 5), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, name="scaled"
    )
    assert_equal(actual, stacked(5).sum(0) * 2.0, "prescale 0.5, postscale 4")


def check_allreduce_in_place():
    for dtype in REDUCIBLE:
        mine = values(hvd.rank(), 6, dtype=dtype)
        returned = hvd.allreduce_(mine, op=hvd.Sum, name=f"in_place.{dtype}")
        assert returned.data_ptr() == mine.data_ptr()
        assert_equal(mine, stacked(6, dtype=dtype).sum(0, dtype=dtype), f"in place {dtype}")


def check_allreduce_asynchronous_in_another_order_on_each_rank():
    # Horovod matches operations by name, whatever the order in which ranks start them.
    order = range(20) if hvd.rank() % 2 == 0 else reversed(range(20))
    handles = {i: hvd.allreduce_async(values(hvd.rank(), i + 1, seed=i), op=hvd.Sum, name=f"async.{i}") for i in order}
    for i in range(20):
        total = hvd.synchronize(handles[i])
        assert_equal(total, stacked(i + 1, seed=i).sum(0), f"asynchronous {i}")


def check_poll_turns_true():
    handle = hvd.allreduce_async(values(hvd.rank(), 4), op=hvd.Sum, name="polled")
    while not hvd.poll(handle):
        pass  # the harness ends a check that hangs
    assert_equal(hvd.synchronize(handle), stacked(4).sum(0), "polled")


def check_large_tensors_survive_fusion_and_segments():
    # 5 MB, which share one buffer where fusion is on, and of lengths that no power of two divides.
    sizes = (1, 3, 1_000_003, 17, 300_007)
    handles = [hvd.allreduce_async(values(hvd.rank(), n, seed=n), op=hvd.Sum, name=f"large.{n}") for n in sizes]
    totals = [hvd.synchronize(handle) for handle in handles]
    for n, total in zip(sizes, totals, strict=True):
        assert_equal(total, stacked(n, seed=n).sum(0), f"{n} elements")


def check_grouped_allreduce():
    for dtype in REDUCIBLE:
        mine = [values(hvd.rank(), n, dtype=dtype, seed=n) for n in (1, 4, 9)]
        totals = hvd.grouped_allreduce(mine, op=hvd.Sum, name=f"grouped.{dtype}")
        handle = hvd.grouped_allreduce_async(mine, op=hvd.Sum, name=f"grouped_async.{dtype}")
        later = hvd.synchronize(handle)
        in_place = [tensor.clone() for tensor in mine]
        hvd.grouped_allreduce_(in_place, op=hvd.Sum, name=f"grouped_in_place.{dtype}")
        for n, *results in zip((1, 4, 9), totals, later, in_place, strict=True):
            for result in results:
                assert_equal(result, stacked(n, dtype=dtype, seed=n).sum(0, dtype=dtype), f"grouped {dtype} {n}")


def check_gradient_of_allreduce():
    weights = stacked(5, seed=1)
    mine = values(hvd.rank(), 5).requires_grad_()
    total = hvd.allreduce(mine, op=hvd.Sum, name="differentiable")
    (total * weights[hvd.rank()]).sum().backward()
    assert_equal(mine.grad, weights.sum(0), "each rank's input feeds the losses of all ranks")


def check_allgather_with_unequal_first_dimensions():
    for dtype in MOVABLE:
        mine = values(hvd.rank(), hvd.rank() + 2, 3, dtype=dtype)
        expected = torch.cat([values(rank, rank + 2, 3, dtype=dtype) for rank in range(hvd.size())])
        assert_equal(hvd.allgather(mine, name=f"gather.{dtype}"), expected, f"allgather {dtype}")
        assert_equal(
            hvd.synchronize(hvd.allgather_async(mine, name=f"gather_async.{dtype}")), expected, f"async {dtype}"
        )


def check_grouped_allgather():
    mine = [values(hvd.rank(), hvd.rank() + n, seed=n) for n in (1, 3)]
    for n, gathered in zip((1, 3), hvd.grouped_allgather(mine, name="grouped_gather"), strict=True):
        expected = torch.cat([values(rank, rank + n, seed=n) for rank in range(hvd.size())])
        assert_equal(gathered, expected, f"grouped allgather {n}")


def check_gradient_of_allgather():
    weights = stacked(hvd.size(), seed=2)  # row: the rank whose loss it is; column: the rank whose input
    mine = values(hvd.rank(), 1).requires_grad_()
    (hvd.allgather(mine, name="differentiable_gather") * weights[hvd.rank()]).sum().backward()
    # Horovod averages here, where allreduce(op=Sum) sums.
    assert_equal(mine.grad, weights[:, hvd.rank()].mean(0, keepdim=True), "gradient of allgather")


def check_broadcast_from_every_rank():
    for dtype in MOVABLE:
        for root in range(hvd.size()):
            mine = values(hvd.rank(), 2, 3, dtype=dtype)
            expected = values(root, 2, 3, dtype=dtype)
            assert_equal(hvd.broadcast(mine, root, name=f"cast.{dtype}.{root}"), expected, f"from {root} {dtype}")
            assert_equal(mine, values(hvd.rank(), 2, 3, dtype=dtype), "the input of a broadcast")
            hvd.broadcast_(mine, root, name=f"cast_in_place.{dtype}.{root}")
            assert_equal(mine, expected, f"in place from {root} {dtype}")


def check_broadcast_and_allgather_of_objects():
    assert hvd.broadcast_object({"rank": hvd.rank(), "text": "ä" * 1000}, 1, name="object") == {
        "rank": 1,
        "text": "ä" * 1000,
    }
    gathered = hvd.allgather_object(["x"] * hvd.rank(), name="objects")
    assert gathered == [["x"] * rank for rank in range(hvd.size())]


def check_alltoall_in_equal_parts():
    for dtype in MOVABLE:
        received = hvd.alltoall(values(hvd.rank(), 2 * hvd.size(), 3, dtype=dtype), name=f"alltoall.{dtype}")
        mine = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
        parts = [everyone[mine] for everyone in values_of_all(2 * hvd.size(), 3, dtype=dtype)]
        assert_equal(received, torch.cat(parts), f"alltoall {dtype}")


def check_alltoall_in_unequal_parts():
    def splits(sender):
        return [1 + (sender + receiver) % 3 for receiver in range(hvd.size())]

    def sent(sender):
        return values(sender, sum(splits(sender)))

    received, counts = hvd.alltoall(sent(hvd.rank()), splits=splits(hvd.rank()), name="alltoall.unequal")
    parts = [sent(sender).split(splits(sender))[hvd.rank()] for sender in range(hvd.size())]
    assert_equal(received, torch.cat(parts), "alltoall in unequal parts")
    assert counts.tolist() == [len(part) for part in parts]


def check_reducescatter():
    rows = 2 * hvd.size() + 1  # the first ranks get what is left over
    for dtype in REDUCIBLE:
        everyone = stacked(rows, 3, dtype=dtype).sum(0, dtype=dtype)
        mine = everyone.tensor_split(hvd.size())[hvd.rank()]
        total = hvd.reducescatter(values(hvd.rank(), rows, 3, dtype=dtype), op=hvd.Sum, name=f"scatter.{dtype}")
        assert_equal(total, mine, f"reducescatter {dtype}")
        grouped = hvd.grouped_reducescatter(
            [values(hvd.rank(), rows, 3, dtype=dtype)] * 2, op=hvd.Sum, name=f"grouped_scatter.{dtype}"
        )
        for part in grouped:
            assert_equal(part, mine, f"grouped reducescatter {dtype}")
    average = hvd.reducescatter(values(hvd.rank(), rows), name="scatter.average")
    assert_equal(average, stacked(rows).mean(0).tensor_split(hvd.size())[hvd.rank()], "average")


def check_no_rank_passes_a_barrier_before_the_last_has_come():
    folder = tempfile.mkdtemp() if hvd.rank() == 0 else None
    sign = Path(hvd.broadcast_object(folder, 0, name="barrier.folder")) / "the last rank has come"
    if hvd.rank() == hvd.size() - 1:
        time.sleep(0.3)  # nothing to wait for: the point is to be late
        sign.touch()
    hvd.barrier()
    has_come = sign.exists()
    hvd.barrier()
    if hvd.rank() == 0:
        shutil.rmtree(folder)
    assert has_come
