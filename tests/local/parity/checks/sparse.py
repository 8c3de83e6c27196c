"""Sparse gradients of embeddings. Horovod gathers them instead of reducing; the allreduce that the
sabotage needs is in sparse_as_dense and in the dense layer beside the embedding."""

import horovod.torch as hvd
import torch
from harness import CLASSES, assert_same_weights, values_of_all

WORDS = 12


def make_model(sparse):
    torch.manual_seed(11)
    return torch.nn.Sequential(
        torch.nn.EmbeddingBag(WORDS, 5, mode="sum", sparse=sparse), torch.nn.Linear(5, CLASSES)
    )


def words(rank, step):
    # Ranks share some words and repeat some, so that gathered rows have to be added up.
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(0, WORDS - 2 * rank, (6, 4), generator=generator), torch.arange(6) % CLASSES


def train(model, optimizer, ranks, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        tokens, labels = (torch.cat(each) for each in zip(*(words(rank, step) for rank in ranks), strict=True))
        torch.nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    return model


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5)


def reference():
    model = make_model(sparse=False)
    return train(model, sgd(model), range(hvd.size()))


def check_gathered():
    model = make_model(sparse=True)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    train(model, optimizer, [hvd.rank()])
    assert model[0].weight.grad.is_sparse
    assert_same_weights(model, reference())


def check_sparse_as_dense():
    model = make_model(sparse=True)
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), sparse_as_dense=True)
    train(model, optimizer, [hvd.rank()])
    assert_same_weights(model, reference())


def check_sparse_allreduce_of_tensors():
    def sparse(rank):
        dense = values_of_all(6, 2)[rank]
        dense[rank::2] = 0
        return dense.to_sparse()

    gathered = hvd.sparse_allreduce_async(sparse(hvd.rank()), name="rows", op=hvd.Average)()
    expected = sum(sparse(rank).to_dense() for rank in range(hvd.size())) / hvd.size()
    torch.testing.assert_close(gathered.to_dense(), expected)
