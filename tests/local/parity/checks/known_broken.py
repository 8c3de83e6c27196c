"""What Horovod 0.28 refuses, as the README lists it. A check that fails here is good news: take the
limit out of the README, and the way around it out of hvdkit."""

import horovod.torch as hvd
import torch
from harness import assert_equal, assert_raises, make_model, values

from hvdkit.runtime.compression import compression


def check_dtypes_that_cannot_be_reduced():
    for dtype in (torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.bool):
        for collective in (hvd.allreduce, hvd.reducescatter):
            tensor = torch.ones(4).to(dtype)
            assert_raises(ValueError, "not supported", lambda f=collective, t=tensor: f(t, name="refused"))


def check_bfloat16_and_bool_cannot_be_moved_either():
    for dtype in (torch.bfloat16, torch.bool):
        tensor = torch.ones(4).to(dtype)
        assert_raises(ValueError, "not supported", lambda t=tensor: hvd.allgather(t, name="refused"))
        assert_raises(ValueError, "not supported", lambda t=tensor: hvd.broadcast(t, 0, name="refused"))
        assert_raises(ValueError, "not supported", lambda t=tensor: hvd.alltoall(t, name="refused"))


def check_tensors_that_are_not_contiguous():
    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert_raises(ValueError, "contiguous", lambda: hvd.allreduce(image, name="refused"))
    # The gradient of a plain sum is one number spread over the shape, so it is not contiguous either.
    tensor = values(hvd.rank(), 4).requires_grad_()
    total = hvd.allreduce(tensor, op=hvd.Sum, name="spread")
    assert_raises(ValueError, "contiguous", lambda: total.sum().backward())


def check_sparse_bfloat16_gradients():
    embedding = torch.nn.Embedding(6, 3, sparse=True, dtype=torch.bfloat16)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=0.1), embedding.named_parameters(), compression=compression()
    )
    loss = embedding(torch.tensor([hvd.rank()])).sum()
    assert_raises(ValueError, "not supported", loss.backward)
    del optimizer


def check_sync_batch_norm_needs_a_gpu():
    layer = hvd.SyncBatchNorm(3)
    assert_raises(ValueError, "GPU", lambda: layer(torch.ones(2, 3, 4, 4)))


def check_alltoall_splits_as_int64():
    splits = torch.full((hvd.size(),), 1)
    assert_raises(
        ValueError, "32-bit", lambda: hvd.alltoall(torch.ones(hvd.size()), splits=splits, name="refused")
    )


def check_reducescatter_knows_sum_and_average_only():
    assert_raises(
        hvd.HorovodInternalError,
        "AVERAGE and SUM",
        lambda: hvd.reducescatter(torch.ones(4), op=hvd.Max, name="refused.max"),
    )


def check_broadcast_of_a_fresh_optimizer_takes_a_step():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}
    for parameter, start in zip(model.parameters(), make_model().parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), start.detach() * (1 - 0.1 * 0.5))


def check_ranks_still_work_after_the_refusals():
    total = hvd.allreduce(values(hvd.rank(), 3), op=hvd.Sum, name="still")
    assert_equal(total, sum(values(rank, 3) for rank in range(hvd.size())), "after refusals")
