"""hvd.join: a rank that has run out of batches lets the others go on; in their reductions it counts as
zeros, and an average is still over all ranks."""

import horovod.torch as hvd
import torch
from harness import assert_equal, assert_same_weights, batch, loss_of, make_model, set_averaged_gradients, values

# Three ranks, to run beside process_sets.py and apart from the others: ranks that have run different
# numbers of operations no longer agree on the names that Horovod gives to unnamed ones, and then
# even the gradient of an allreduce, which cannot be named, hangs for ever (README, known limits).
WORLD_SIZE = 3

LAST = 1  # the rank with more batches than the others


def check_reductions_after_the_others_have_joined():
    mine = values(hvd.rank(), 5)
    together = hvd.allreduce(mine, op=hvd.Sum, name="together")
    alone = average = None
    if hvd.rank() == LAST:
        alone = hvd.allreduce(mine, op=hvd.Sum, name="alone")
        average = hvd.allreduce(mine, op=hvd.Average, name="alone.average")
    last_joined = hvd.join()
    assert_equal(together, sum(values(rank, 5) for rank in range(hvd.size())), "while all were there")
    if hvd.rank() == LAST:
        assert_equal(alone, mine, "sum with zeros")
        torch.testing.assert_close(average, mine / hvd.size())
    assert last_joined == LAST


def check_optimizer_with_unequal_numbers_of_batches():
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2), model.named_parameters())
    batches = [4 if rank == LAST else 2 for rank in range(hvd.size())]
    for step in range(batches[hvd.rank()]):
        optimizer.zero_grad()
        loss_of(model, *batch(hvd.rank(), step)).backward()
        optimizer.step()
    hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=LAST)

    plain = torch.optim.SGD(reference.parameters(), lr=0.2)
    for step in range(batches[LAST]):
        set_averaged_gradients(
            reference,
            lambda rank, step=step: loss_of(reference, *batch(rank, step)) * (1.0 if step < batches[rank] else 0.0),
        )
        plain.step()
    assert_same_weights(model, reference)


def check_ranks_work_together_again_after_a_join():
    hvd.join()
    total = hvd.allreduce(values(hvd.rank(), 3), op=hvd.Sum, name="again")
    assert_equal(total, sum(values(rank, 3) for rank in range(hvd.size())), "after the join")
