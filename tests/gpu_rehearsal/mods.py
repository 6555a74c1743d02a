"""Implementations of a user: where they launch, when they wait, how they break."""

import torch
from torch import nn
from torch.nn import functional


class Plain(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.heads, width = spec.heads, spec.dim
        self.w = nn.Parameter(torch.empty(3 * width, width))
        self.o = nn.Parameter(torch.empty(width, width))

    def load_canonical(self, weights):
        with torch.no_grad():
            self.w.copy_(torch.cat([weights["w_q"], weights["w_k"], weights["w_v"]]))
            self.o.copy_(weights["w_o"])

    def project(self, x):
        heads = functional.linear(x, self.w).chunk(3, -1)
        return [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in heads]

    def attend(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        heads = self.attend(*self.project(x))
        return functional.linear(heads.transpose(1, 2).flatten(2), self.o)


class Legacy(Plain):
    """All of it on the legacy default stream, as an extension that forgets the current one."""

    def forward(self, x):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return super().forward(x)


class LegacyKernel(Plain):
    """The kernel alone on the legacy default stream, the projections where they belong."""

    def attend(self, q, k, v):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return super().attend(q, k, v)


class Pool(Plain):
    """On a stream of its own that follows the current one."""

    joins = False

    def forward(self, x):
        if not hasattr(self, "side"):
            object.__setattr__(self, "side", torch.cuda.Stream())
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            result = super().forward(x)
        if self.joins:
            torch.cuda.current_stream().wait_stream(self.side)
        return result


class Joined(Pool):
    """On a stream of its own, which the current one waits for: as it should be."""

    joins = True


class Waits(Plain):
    """Waits for the device inside the call, as code with .item() does."""

    def forward(self, x):
        torch.cuda.synchronize()
        return super().forward(x)


class Asserts(Plain):
    """Right three times, then an index out of range on the device: the context is lost."""

    calls = 0

    def forward(self, x):
        Asserts.calls += 1
        if Asserts.calls > 3:
            x = x[:, torch.tensor([x.shape[1] + 5], device=x.device)] + x
        return super().forward(x)
