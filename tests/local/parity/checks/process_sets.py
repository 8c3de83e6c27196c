"""Process sets: reductions among some of the ranks. Three ranks, because a set that is neither one
rank nor all of them needs a third."""

import horovod.torch as hvd
import torch
from harness import assert_equal, assert_raises, assert_same_weights, batch, loss_of, make_model, values

WORLD_SIZE = 3
OUTER, MIDDLE = [0, 2], [1]


class Sets:
    """The sets of this file, gone again afterwards: a second set of the same ranks is refused."""

    def __enter__(self):
        self.outer, self.middle = hvd.add_process_set(OUTER), hvd.add_process_set(MIDDLE)
        self.mine = self.middle if hvd.rank() in MIDDLE else self.outer
        return self

    def __exit__(self, *_):
        assert hvd.remove_process_set(self.outer)
        assert hvd.remove_process_set(self.middle)


def check_ranks_and_sizes():
    with Sets() as sets:
        assert (sets.outer.size(), sets.middle.size()) == (2, 1)
        assert sets.outer.included() == (hvd.rank() in OUTER)
        assert sets.mine.rank() == sets.mine.ranks.index(hvd.rank())
        assert hvd.global_process_set.ranks == [0, 1, 2]


def check_collectives_within_a_set():
    with Sets() as sets:
        mine, name = values(hvd.rank(), 4), f"within.{sets.mine.ranks}"
        everyone = [values(rank, 4) for rank in sets.mine.ranks]
        total = hvd.allreduce(mine, op=hvd.Sum, process_set=sets.mine, name=f"{name}.sum")
        average = hvd.allreduce(mine, process_set=sets.mine, name=f"{name}.average")
        grouped = hvd.grouped_allreduce([mine, mine], op=hvd.Sum, process_set=sets.mine, name=f"{name}.grouped")
        gathered = hvd.allgather(mine, process_set=sets.mine, name=f"{name}.gather")
        # The root is a rank of the world, not of the set.
        received = hvd.broadcast(mine, sets.mine.ranks[-1], process_set=sets.mine, name=f"{name}.broadcast")
        hvd.barrier(process_set=sets.mine)
    assert_equal(total, sum(everyone), "sum")
    assert_equal(average, sum(everyone) / len(everyone), "average")
    for each in grouped:
        assert_equal(each, sum(everyone), "grouped sum")
    assert_equal(gathered, torch.cat(everyone), "allgather")
    assert_equal(received, everyone[-1], "broadcast")


def check_all_ranks_beside_sets():
    with Sets() as sets:
        part = hvd.allreduce_async(values(hvd.rank(), 3), op=hvd.Sum, process_set=sets.mine, name=f"{sets.mine.ranks}")
        whole = hvd.allreduce(values(hvd.rank(), 3, seed=1), op=hvd.Sum, name="whole")
        part = hvd.synchronize(part)
    assert_equal(whole, sum(values(rank, 3, seed=1) for rank in range(3)), "all ranks")
    assert_equal(part, sum(values(rank, 3) for rank in sets.mine.ranks), "a set of ranks")


def check_optimizer_within_a_set():
    model, reference = make_model(), make_model()
    with Sets() as sets:
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.2), model.named_parameters(), process_set=sets.outer
        )
        loss_of(model, *batch(hvd.rank(), 0)).backward()
        optimizer.step()
    # A rank outside the set goes on by itself.
    ranks = OUTER if hvd.rank() in OUTER else [hvd.rank()]
    loss = sum(loss_of(reference, *batch(rank, 0)) for rank in ranks) / len(ranks)
    with torch.no_grad():
        for parameter, gradient in zip(
            reference.parameters(), torch.autograd.grad(loss, list(reference.parameters())), strict=True
        ):
            parameter -= 0.2 * gradient
    assert_same_weights(model, reference)


def check_a_set_cannot_be_added_twice():
    with Sets():
        assert_raises(ValueError, "", lambda: hvd.add_process_set(OUTER))
