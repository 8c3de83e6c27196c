"""The layers of a model, as far as a projection must know them: gradient bytes, and a share of the backward pass."""

from typing import Any

from hvdkit.bench.project import Layer
from hvdkit.errors import EnvironmentProblem, InputError

IMAGE_SIZES = {"inception_v3": 299}  # of torchvision's classifiers; the others take 224
BYTES_PER_GRADIENT = 4


def named_layers(name: str) -> tuple[Layer, ...]:
    """Of mnist-cnn or a torchvision classifier, without making its weights."""
    try:
        import torch
        import torchvision
    except ImportError as error:
        raise EnvironmentProblem(
            f"--model needs torchvision ({error}); run \"pip install 'hvdkit[train]'\"."
        ) from error
    from hvdkit.train.models import MNIST_CNN, create

    if name == MNIST_CNN:
        with torch.device("meta"):
            return layers_of(create(name, classes=10, channels=1, image_size=28), torch.empty(1, 1, 28, 28))
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(
            f"--model '{name}' is neither {MNIST_CNN} nor a torchvision classifier; say --gradient-megabytes instead."
        )
    # Published parameter counts of Inception V3 leave its second head out, and so do the benchmarks.
    options = {"aux_logits": False, "init_weights": False} if name in ("inception_v3", "googlenet") else {}
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None, **options)
        size = IMAGE_SIZES.get(name, 224)
        return layers_of(model, torch.empty(1, 3, size, size))


def layers_of(model: Any, example: Any) -> tuple[Layer, ...]:
    """Of a module that takes `example`, in the order of the backward pass.

    The time of a layer's backward pass is taken to follow its multiplications; layers without any (normalisation)
    cost nothing and hand their gradients over with the next one.
    """
    import torch

    visited: list[tuple[float, float]] = []  # bytes and multiplications, in the order of the forward pass
    seen: set[int] = set()

    def visit(module: torch.nn.Module, _: Any, output: torch.Tensor) -> None:
        own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        fresh = [parameter for parameter in own if id(parameter) not in seen]
        seen.update(map(id, own))
        matrices = [parameter for parameter in own if parameter.dim() > 1]
        # Every weight of a convolution is used once an output position, that of a linear layer once a row.
        positions = output[0].numel() / matrices[0].shape[0] if matrices else 0
        work = sum(parameter.numel() for parameter in matrices) * positions
        visited.append((BYTES_PER_GRADIENT * sum(parameter.numel() for parameter in fresh), work))

    with_own = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    hooks = [module.register_forward_hook(visit) for module in with_own]
    try:
        with torch.no_grad():
            model.eval()(example)
    finally:
        for hook in hooks:
            hook.remove()
    total = sum(work for _, work in visited) or 1.0
    return tuple(Layer(gradient_bytes=size, backward_share=work / total) for size, work in reversed(visited))
