"""DistributedOptimizer: ranks that each see their own batches must end at the weights of one process
that sees all batches."""

import copy
from functools import partial

import horovod.torch as hvd
import torch
from harness import (
    assert_equal,
    assert_raises,
    assert_same_weights,
    batch,
    loss_of,
    make_model,
    set_averaged_gradients,
    train_on_joined_batch,
    train_with_horovod,
)
from torch.optim import SGD, Adam, AdamW

ALSO_UNFUSED = ("check_groups_by_number_and_by_list",)

STEPS = 4

OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.2),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": partial(Adam, lr=1e-2),
    "adamw fused": partial(AdamW, lr=1e-2, fused=True),
    "adam foreach": partial(Adam, lr=1e-2, foreach=True),
}


def distributed(model, make_optimizer=OPTIMIZERS["momentum"], **options):
    return hvd.DistributedOptimizer(
        make_optimizer(model.parameters()), named_parameters=model.named_parameters(), **options
    )


def check_equals_one_process_with_every_optimizer():
    for name, make_optimizer in OPTIMIZERS.items():
        model = make_model()
        train_with_horovod(distributed(model, make_optimizer), model, STEPS)
        reference = train_on_joined_batch(make_optimizer, STEPS)
        # Adam divides by the root of small numbers, which enlarges the rounding of the sum.
        assert_same_weights(model, reference, tolerance=2e-5 if "adam" in name else 2e-6)


def check_without_named_parameters():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
    train_with_horovod(optimizer, model, STEPS)
    assert_same_weights(model, train_on_joined_batch(OPTIMIZERS["sgd"], STEPS))


def check_groups_by_number_and_by_list():
    reference = train_on_joined_batch(OPTIMIZERS["momentum"], STEPS)
    by_number, by_list = make_model(), make_model()
    first, *others = by_list.parameters()
    train_with_horovod(distributed(by_number, groups=2), by_number, STEPS)
    train_with_horovod(distributed(by_list, groups=[[first, others[1]], [others[0]]]), by_list, STEPS)
    assert_same_weights(by_number, reference)
    assert_same_weights(by_list, reference)


def check_sum_is_average_times_ranks():
    model = make_model()
    make_optimizer = partial(SGD, lr=0.2 / hvd.size())
    train_with_horovod(distributed(model, make_optimizer, op=hvd.Sum), model, STEPS)
    assert_same_weights(model, train_on_joined_batch(OPTIMIZERS["sgd"], STEPS))


def check_predivide_factor():
    model = make_model()
    optimizer = distributed(model, gradient_predivide_factor=float(hvd.size()))
    train_with_horovod(optimizer, model, STEPS)
    assert_same_weights(model, train_on_joined_batch(OPTIMIZERS["momentum"], STEPS))


def check_accumulation_over_two_backward_passes():
    model, reference = make_model(), make_model()
    optimizer = distributed(model, OPTIMIZERS["sgd"], backward_passes_per_step=2)
    plain = OPTIMIZERS["sgd"](reference.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for half in range(2):
            loss_of(model, *batch(hvd.rank(), 2 * step + half)).backward()
        optimizer.step()
        set_averaged_gradients(
            reference,
            lambda rank, step=step: sum(loss_of(reference, *batch(rank, 2 * step + half)) for half in range(2)),
        )
        plain.step()
    assert_same_weights(model, reference)


def check_zero_grad_takes_set_to_none():
    model = make_model()
    optimizer = distributed(model, OPTIMIZERS["sgd"])
    loss_of(model, *batch(hvd.rank(), 0)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(not parameter.grad.any() for parameter in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in model.parameters())


def check_clipping_between_synchronize_and_step():
    model, reference = make_model(), make_model()
    optimizer = distributed(model, OPTIMIZERS["sgd"])
    loss_of(model, *batch(hvd.rank(), 0)).backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()

    plain = OPTIMIZERS["sgd"](reference.parameters())
    set_averaged_gradients(reference, lambda rank: loss_of(reference, *batch(rank, 0)))
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    plain.step()
    assert_same_weights(model, reference)


def check_a_parameter_that_only_one_rank_used():
    model, reference = make_model(), make_model()
    head = model[2]
    optimizer = distributed(model, OPTIMIZERS["sgd"])
    inputs, labels = batch(hvd.rank(), 0)
    hidden = model[1](model[0](inputs))
    output = head(hidden) if hvd.rank() == 0 else hidden[:, : head.out_features]
    torch.nn.functional.cross_entropy(output, labels).backward()
    optimizer.step()

    def loss(rank):
        inputs, labels = batch(rank, 0)
        hidden = reference[1](reference[0](inputs))
        # Times zero keeps the head in the graph of the ranks that leave it out.
        output = reference[2](hidden) if rank == 0 else hidden[:, :4] + 0 * reference[2](hidden)
        return torch.nn.functional.cross_entropy(output, labels)

    set_averaged_gradients(reference, loss)
    OPTIMIZERS["sgd"](reference.parameters()).step()
    assert_same_weights(model, reference)


def check_learning_rate_schedule():
    model, reference = make_model(), make_model()
    optimizer, plain = distributed(model), OPTIMIZERS["momentum"](reference.parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(each, step_size=1, gamma=0.5) for each in (optimizer, plain)]
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *batch(hvd.rank(), step)).backward()
        optimizer.step()
        set_averaged_gradients(reference, lambda rank, step=step: loss_of(reference, *batch(rank, step)))
        plain.step()
        for schedule in schedules:
            schedule.step()
    assert_same_weights(model, reference)


def check_state_saved_and_loaded_in_the_middle():
    model = make_model()
    optimizer = distributed(model, OPTIMIZERS["adam"])
    train_with_horovod(optimizer, model, 2)
    saved = copy.deepcopy(optimizer.state_dict())

    resumed = copy.deepcopy(model)
    continued = distributed(resumed, OPTIMIZERS["adam"])
    continued.load_state_dict(saved)
    for optimizer_, model_ in ((optimizer, model), (continued, resumed)):
        for step in (2, 3):
            optimizer_.zero_grad()
            loss_of(model_, *batch(hvd.rank(), step)).backward()
            optimizer_.step()
    assert_same_weights(resumed, model, tolerance=0)
    assert_same_weights(resumed, train_on_joined_batch(OPTIMIZERS["adam"], 4), tolerance=2e-5)


def check_broadcast_of_parameters_and_optimizer_state():
    # Ranks start apart, in weights, momentum and learning rate.
    model = make_model(seed=hvd.rank())
    optimizer = SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
    loss_of(model, *batch(hvd.rank(), 9)).backward()
    optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)

    reference = make_model(seed=1)
    plain = SGD(reference.parameters(), lr=0.2, momentum=0.9)
    loss_of(reference, *batch(1, 9)).backward()
    plain.step()
    assert_same_weights(model, reference, tolerance=0)
    assert optimizer.param_groups[0]["lr"] == 0.2
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert_equal(optimizer.state[mine]["momentum_buffer"], plain.state[theirs]["momentum_buffer"], "momentum")


def check_mistakes_are_refused():
    model = make_model()
    (name, first), *others = model.named_parameters()
    sgd = OPTIMIZERS["sgd"](model.parameters())
    assert_raises(
        ValueError, "not named", lambda: hvd.DistributedOptimizer(sgd, named_parameters=[(name, first)])
    )
    twice = [(name, parameter) for _, parameter in [(name, first), *others]]
    assert_raises(ValueError, "unique", lambda: hvd.DistributedOptimizer(sgd, named_parameters=twice))
    optimizer = distributed(model)
    loss_of(model, *batch(hvd.rank(), 0)).backward()
    assert_raises(AssertionError, "race condition", optimizer.zero_grad)
    optimizer.step()
