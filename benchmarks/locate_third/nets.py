"""The torch networks of the third set; each class is a factory for its file of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Listener(nn.Module):
    """A recurrent encoder of two directions, additive attention over its states, one recurrent cell on top."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.encode = nn.GRU(12, 10, batch_first=True, bidirectional=True)
        self.query = nn.Linear(6, 16)
        self.keys = nn.Linear(20, 16, bias=False)
        self.energy = nn.Linear(16, 1)
        self.cell = nn.GRUCell(20, 14)
        self.start = nn.Linear(6, 14)
        self.say = nn.Linear(14, 9)

    def forward(self, words: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.encode(self.embed(words))
        scores = self.energy(torch.tanh(self.keys(states) + self.query(speaker).unsqueeze(1))).squeeze(-1)
        scores = scores.masked_fill(words == 0, -1e4)
        weights = scores.softmax(-1)
        context = (weights.unsqueeze(-1) * states).sum(1)
        return self.say(self.cell(context, torch.tanh(self.start(speaker)))).log_softmax(-1), weights


class Separable(nn.Module):
    def __init__(self, wide: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.depth = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False, padding_mode="reflect")
        self.point = nn.Conv2d(wide, out, 1)
        self.norm = nn.GroupNorm(4, out)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.point(self.depth(x))))


class Painter(nn.Module):
    """A U-shaped network of separable convolutions: group norm, pooling rounded up, transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = Separable(3, 12)
        self.down = Separable(12, 16)
        self.middle = Separable(16, 16)
        self.up = nn.ConvTranspose2d(16, 12, 3, 2, 1, output_padding=0)
        self.join = Separable(24, 8)
        self.mask = nn.Conv2d(8, 2, 1)

    def forward(self, picture: Tensor) -> Tensor:
        high = self.enter(picture)
        low = self.middle(self.down(F.max_pool2d(high, 2, 2, ceil_mode=True)))
        wide = F.leaky_relu(self.up(low), 0.2)
        pooled = F.avg_pool2d(torch.cat([wide, high], 1), 3, 1, 1, count_include_pad=True)
        return self.mask(self.join(pooled)).sigmoid()


class Block(nn.Module):
    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = nn.Parameter(torch.ones(wide))
        self.qkv = nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)
        self.norm = nn.LayerNorm(wide, eps=1e-3)
        self.gate = nn.Linear(wide, 2 * wide)
        self.value = nn.Linear(wide, 2 * wide)
        self.down = nn.Linear(2 * wide, wide)

    def forward(self, x: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        n, length, wide = x.shape
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-2) * self.scale
        parts = self.qkv(h).view(n, length, 3, self.heads, wide // self.heads).permute(2, 0, 3, 1, 4)
        q, k = (self.turned(part, *turn) for part in (parts[0], parts[1]))
        scores = (q @ k.transpose(-1, -2)) * (wide // self.heads) ** -0.5
        seen = scores.masked_fill(mask, -1e9).softmax(-1) @ parts[2]
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, wide))
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.value(h))

    @staticmethod
    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Writer(nn.Module):
    """A decoder with a causal mask, positions by rotation, root mean square norms and gated layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList([Block(24, 3) for _ in range(2)])
        self.last = nn.LayerNorm(24)
        self.head = nn.Linear(24, 20)
        angle = torch.outer(torch.arange(9.0), 10.0 ** -torch.arange(0.0, 2.0, 0.5))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.bool).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        for block in self.blocks:
            h = block(h, self.mask, (self.cos, self.sin))
        return self.head(self.last(h)[:, -3:])


class Shop(nn.Module):
    """Bags of items (mean and largest), an image and prices, joined by products of their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(30, 8)
        self.likes = nn.Embedding(30, 8)
        self.see = nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU6(), nn.Conv2d(6, 8, 3, 2))
        self.price = nn.Sequential(nn.Linear(5, 16), nn.Softplus(), nn.Linear(16, 8))
        self.deep = nn.Sequential(nn.Linear(6, 16), nn.Mish(), nn.Linear(16, 1))
        self.wide = nn.Linear(32, 1)

    def forward(self, basket: Tensor, liked: Tensor, photo: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
        there = (basket > 0).float().unsqueeze(-1)
        bag = (self.items(basket) * there).sum(1) / there.sum(1).clamp(min=1.0)
        like = self.likes(liked).amax(1)
        seen = self.see(photo).mean((2, 3))
        cost = self.price(prices.clamp(0.0, 6.0).log1p())
        parts = [bag, like, seen, cost]
        products = torch.stack([(a * b).sum(1) for i, a in enumerate(parts) for b in parts[i + 1 :]], 1)
        joined = torch.cat(parts, 1)
        return torch.sigmoid(self.deep(products) + self.wide(joined)), F.normalize(joined, dim=1)


class Ear(nn.Module):
    """Dilated causal convolutions with gates, a circular one, an LSTM behind them, and quantiles in order."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 8, 3, padding=1, padding_mode="circular")
        self.filter = nn.ModuleList([nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(3)])
        self.gate = nn.ModuleList([nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(3)])
        self.norm = nn.BatchNorm1d(8)
        self.memory = nn.LSTM(8, 10, batch_first=True)
        self.step = nn.Linear(10, 5)

    def forward(self, sound: Tensor) -> Tensor:
        h = self.enter(sound)
        for i, (filtered, gated) in enumerate(zip(self.filter, self.gate, strict=True)):
            padded = F.pad(h, (2**i, 0))
            h = h + torch.tanh(filtered(padded)) * torch.sigmoid(gated(padded))
        h = F.interpolate(self.norm(h), scale_factor=2.0, mode="linear", align_corners=True)
        states, _ = self.memory(h.transpose(1, 2))
        return F.softplus(self.step(states[:, -1])).cumsum(1)
