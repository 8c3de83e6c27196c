"""torch.compile, with its default compiler."""

from functools import partial

import horovod.torch as hvd
import torch
from harness import (
    assert_equal,
    assert_same_weights,
    batch,
    loss_of,
    make_model,
    train_on_joined_batch,
    values,
    values_of_all,
)

STEPS = 3
sgd = partial(torch.optim.SGD, lr=0.2)


def check_compiled_model_trains_as_in_one_process():
    model = make_model()
    compiled = torch.compile(model)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(compiled, *batch(hvd.rank(), step)).backward()
        optimizer.step()
    assert_same_weights(model, train_on_joined_batch(sgd, STEPS), tolerance=1e-5)


def check_allreduce_inside_a_compiled_function():
    @torch.compile
    def doubled_sum(tensor):
        return hvd.allreduce(tensor * 2, op=hvd.Sum, name="compiled") + 1

    for _ in range(2):  # the second call runs what the first compiled
        assert_equal(doubled_sum(values(hvd.rank(), 6)), sum(values_of_all(6)) * 2 + 1, "compiled")
