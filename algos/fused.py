"""Adam as one fused GPU kernel.

The kernel computes the formulas of `optim.adam_torch`. The kernel reads and writes each element of the state once,
whereas `adam_torch` reads and writes the state about 50 times. `adam_torch` is the fallback if Triton (bundled with
torch's CUDA builds) or Triton's C compiler is missing, or if the results differ. Hyperparameters are tensors, so
changing them does not recompile the kernel.

Axes: G policies, N parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

tl: Any = None
"""`triton.language`, set by `make_adam`. The variable is global, because Triton looks names up in the module of the
kernel."""

BLOCK = 1024
"""Parameters per program instance."""
AdamKernel = Callable[..., None]
"""Function with the arguments of `adam_torch`."""


def adam_kernel(device: torch.device, plain: AdamKernel, eps: float) -> AdamKernel | str:
    """Return the kernel for a device, or the reason why no kernel can be used.

    The kernel is compiled and compared with `plain` on a few numbers. Do not call this function during a CUDA graph
    capture.
    """
    if device.type != "cuda":
        return "the fused kernel needs a CUDA device"
    try:
        step = make_adam(eps)
        return step if same(step, plain, device) else "the fused kernel returned wrong results"
    except Exception as error:  # noqa: BLE001 - a compiler or driver may raise anything, and there is a fallback
        return (str(error) or type(error).__name__).splitlines()[0]


def same(step: AdamKernel, plain: AdamKernel, device: torch.device) -> bool:
    """True if both functions change a random state of three policies equally, except for rounding.

    One of the policies is inactive.
    """
    policies, numbers = 3, BLOCK + 7
    generator = torch.Generator().manual_seed(0)
    state = [torch.randn(policies, numbers, generator=generator) for _ in range(4)]
    state[3] = state[3].square()
    values = [[0.5, 0.0, 1.0], [1e-3, 1e-2, 3e-4], [0.9, 0.8, 0.0], [0.999, 0.99, 0.5], [1.5, 1.0, 30.0]]
    answers = []
    for one in (step, plain):
        tensors = [x.to(device, copy=True) for x in (*state, *(torch.tensor(v) for v in values))]
        one(*tensors)
        answers.append([x.cpu() for x in tensors[:4]])
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(*answers, strict=True))


def make_adam(eps: float) -> AdamKernel:
    """Build the fused Adam step, with the arguments of `adam_torch`. Raises ImportError without Triton."""
    import triton  # noqa: PLC0415 - optional dependency, needed only here
    from triton import language  # noqa: PLC0415

    globals()["tl"] = language
    kernel: Any = triton.jit(_adam)

    def step(
        param_GN: Tensor,
        grad_GN: Tensor,
        mean_GN: Tensor,
        square_GN: Tensor,
        *of_policy_G: Tensor,
    ) -> None:
        state = (param_GN, grad_GN, mean_GN, square_GN)
        assert all(x.stride(1) == 1 for x in state), "the parameters of a policy must be contiguous"
        policies, numbers = param_GN.shape
        grid = (triton.cdiv(numbers, BLOCK), policies)
        rows = (x.stride(0) for x in state)
        kernel[grid](*state, *of_policy_G, *rows, numbers, eps=eps, block=BLOCK)

    return step


def _adam(  # type: ignore[no-untyped-def] # Triton reads annotations as its types
    param,  # noqa: ANN001
    grad,  # noqa: ANN001
    mean,  # noqa: ANN001
    square,  # noqa: ANN001
    scale,  # noqa: ANN001
    step_size,  # noqa: ANN001
    beta1,  # noqa: ANN001
    beta2,  # noqa: ANN001
    root,  # noqa: ANN001
    param_row,  # noqa: ANN001
    grad_row,  # noqa: ANN001
    mean_row,  # noqa: ANN001
    square_row,  # noqa: ANN001
    numbers,  # noqa: ANN001
    eps: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Update `block` parameters of one policy."""
    policy = tl.program_id(1)
    own_scale = tl.load(scale + policy)
    if own_scale > 0:
        at = tl.program_id(0) * block + tl.arange(0, block)
        inside = at < numbers
        row = policy.to(tl.int64)
        param_at, grad_at = param + row * param_row + at, grad + row * grad_row + at
        mean_at, square_at = mean + row * mean_row + at, square + row * square_row + at
        b1, b2 = tl.load(beta1 + policy), tl.load(beta2 + policy)
        g = tl.load(grad_at, mask=inside) * own_scale
        m = b1 * tl.load(mean_at, mask=inside) + (1 - b1) * g
        v = b2 * tl.load(square_at, mask=inside) + (1 - b2) * g * g
        change = tl.load(step_size + policy) * m / (tl.sqrt(v) * tl.load(root + policy) + eps)
        tl.store(mean_at, m, mask=inside)
        tl.store(square_at, v, mask=inside)
        tl.store(param_at, tl.load(param_at, mask=inside) - change, mask=inside)
