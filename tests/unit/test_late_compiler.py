"""Optimizers without torch's compiler, and with it as soon as something is compiled."""

import subprocess
import sys

SCRIPT = """
import sys, torch
from hvdkit.runtime import late_compiler

KINDS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}

def trained(prepare=lambda step: step):
    ends = {}
    for name, make in KINDS.items():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        optimizer = make(model.parameters())
        take_step = prepare(optimizer.step)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().sum().backward()
            take_step()
            optimizer.load_state_dict(optimizer.state_dict())
        assert all(parameter.grad_fn is None for parameter in model.parameters()), "a step is no part of the graph"
        ends[name] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return ends

late_compiler.put_off()
late_compiler.put_off()  # by a script that joins the world twice
without = trained()
assert "torch._dynamo" not in sys.modules

import torch._dynamo
asked, disable = [], torch._dynamo.disable
torch._dynamo.disable = lambda function, *rest, **kw: asked.append(function.__name__) or disable(function, *rest, **kw)
breaks, graph_break = [], torch._dynamo.graph_break
torch._dynamo.graph_break = lambda *args: breaks.append(args)
with_it = trained()
assert {"add_param_group", "zero_grad", "state_dict", "load_state_dict"} <= set(asked), asked
assert breaks, "the steps speak to the compiler again"
torch._dynamo.disable, torch._dynamo.graph_break = disable, graph_break
compiled = trained(lambda step: torch.compile(step, backend="eager"))
for name in KINDS:
    assert without[name].equal(with_it[name]), name
    assert without[name].allclose(compiled[name], atol=1e-3), name  # it rounds differently, without us too
"""


def test_optimizers_train_alike_and_import_the_compiler_only_once_it_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
