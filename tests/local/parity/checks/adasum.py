"""Adasum: adds gradients that are orthogonal, averages those that are parallel. Over MPI only: with
Gloo, Horovod has no Adasum, and that has to be an error rather than a wrong sum."""

import horovod.torch as hvd
import torch
from harness import assert_raises, batch, has_mpi, loss_of, make_model, values_of_all


def adasum(first, second):
    dot, first_norm, second_norm = (first * second).sum(), (first**2).sum(), (second**2).sum()
    return first * (1 - dot / (2 * first_norm)) + second * (1 - dot / (2 * second_norm))


def reduced(tensor, name):
    return hvd.allreduce(tensor, op=hvd.Adasum, name=name)


def check_of_vectors_in_every_dtype():
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.float32, 1e-6), (torch.float64, 1e-12)):
        mine = values_of_all(11, dtype=dtype)[hvd.rank()]
        if not has_mpi():
            assert_raises(
                hvd.HorovodInternalError, "No Adasum", lambda mine=mine: reduced(mine, f"refused.{mine.dtype}")
            )
            continue
        expected = adasum(*(each.double() for each in values_of_all(11, dtype=dtype))).to(dtype)
        torch.testing.assert_close(reduced(mine, f"vector.{dtype}"), expected, rtol=tolerance, atol=tolerance)


def check_of_orthogonal_and_of_parallel_vectors():
    orthogonal = torch.eye(4)[hvd.rank()] * 3
    parallel = torch.full((4,), 2.0) * (1 + 2 * hvd.rank())
    if not has_mpi():
        assert_raises(hvd.HorovodInternalError, "No Adasum", lambda: reduced(orthogonal, "orthogonal"))
        return
    torch.testing.assert_close(reduced(orthogonal, "orthogonal"), torch.tensor([3.0, 3.0, 0.0, 0.0]))
    torch.testing.assert_close(reduced(parallel, "parallel"), torch.full((4,), 4.0))


def check_optimizer():
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
    )

    def step():
        optimizer.zero_grad()
        loss_of(model, *batch(hvd.rank(), 0)).backward()
        optimizer.step()

    if not has_mpi():
        assert_raises(hvd.HorovodInternalError, "No Adasum", step)
        return
    step()
    # Each rank takes its own step, and the steps are combined, parameter by parameter.
    deltas = []
    for rank in range(2):
        gradients = torch.autograd.grad(loss_of(reference, *batch(rank, 0)), list(reference.parameters()))
        deltas.append([-0.1 * gradient for gradient in gradients])
    for trained, start, first, second in zip(model.parameters(), reference.parameters(), *deltas, strict=True):
        torch.testing.assert_close(trained.detach(), start.detach() + adasum(first, second), rtol=1e-5, atol=1e-6)


def check_average_beside_it():
    # With Gloo the checks above see refusals only; this one needs a real allreduce with either.
    everyone = values_of_all(6)
    torch.testing.assert_close(hvd.allreduce(everyone[hvd.rank()], name="beside"), sum(everyone) / hvd.size())
