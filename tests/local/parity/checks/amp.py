"""Mixed precision: autocast to bfloat16 over fp32 weights, and the gradient scaler."""

import horovod.torch as hvd
import torch
from harness import assert_same_weights, batch, loss_of, make_model, set_averaged_gradients

STEPS = 3


def loss_in_bfloat16(model, rank, step):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_of(model, *batch(rank, step))


def distributed(model):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2), model.named_parameters())


def reference_training(loss):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(STEPS):
        set_averaged_gradients(model, lambda rank, step=step: loss(model, rank, step))
        optimizer.step()
    return model


def check_autocast():
    model = make_model()
    optimizer = distributed(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_in_bfloat16(model, hvd.rank(), step).backward()
        optimizer.step()
    assert_same_weights(model, reference_training(loss_in_bfloat16))


def step_with_scaler(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    # The scaler looks for infinities in gradients and divides them: they must be the reduced ones.
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def check_scaler():
    model = make_model()
    optimizer, scaler = distributed(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(STEPS):
        step_with_scaler(model, optimizer, scaler, loss_in_bfloat16(model, hvd.rank(), step))
    # A power of two scales exactly.
    assert_same_weights(model, reference_training(loss_in_bfloat16))


def check_an_overflow_on_one_rank_makes_all_skip_the_step():
    model = make_model()
    optimizer, scaler = distributed(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = loss_of(model, *batch(hvd.rank(), 0)) * (float("inf") if hvd.rank() == 0 else 1.0)
    step_with_scaler(model, optimizer, scaler, loss)
    assert_same_weights(model, make_model(), tolerance=0)
    assert scaler.get_scale() == 512.0
