"""The torch networks of the second set; each class is a factory for its file of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Gate(nn.Module):
    """Squeeze and excite."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(wide, wide // 4, 1)
        self.up = nn.Conv2d(wide // 4, wide, 1)

    def forward(self, h: Tensor) -> Tensor:
        s = F.silu(self.down(h.mean((2, 3), keepdim=True)))
        return h * torch.sigmoid(self.up(s))


class Efficient(nn.Module):
    """Depthwise convolutions with batch norm, a gate, hard swish, and a head that gives probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.depth = nn.Conv2d(16, 16, 5, 1, 2, groups=16, bias=False)
        self.depth_bn = nn.BatchNorm2d(16)
        self.gate = Gate(16)
        self.point = nn.Conv2d(16, 24, 1)
        self.group = nn.GroupNorm(4, 24)
        self.drop = nn.Dropout(0.4)
        self.classify = nn.Linear(24, 7)

    def forward(self, image: Tensor) -> Tensor:
        h = self.stem(image)
        h = h + self.gate(F.hardswish(self.depth_bn(self.depth(h))))
        h = F.elu(self.group(self.point(h)))
        h = F.avg_pool2d(h, 3, 2, 1, count_include_pad=False).amax((2, 3))
        return self.classify(self.drop(h)).softmax(1)


class Bottleneck(nn.Module):
    def __init__(self, wide: int, narrow: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(wide, narrow, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.spatial = nn.Conv2d(narrow, narrow, 3, stride, 2, dilation=2, bias=False)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.expand = nn.Conv2d(narrow, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.act = nn.PReLU(wide)
        self.short = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.reduce(x)))
        h = F.relu(self.bn2(self.spatial(h)))
        return self.act(self.bn3(self.expand(h)) + self.short(x))


class Residual(nn.Module):
    """Bottlenecks with dilation and PReLU, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv2d(1, 16, 3, 1, 1)
        self.blocks = nn.ModuleList([Bottleneck(16, 8, s) for s in (1, 2, 1, 1)])
        self.kind = nn.Linear(16, 5)
        self.angle = nn.Linear(16, 2)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        h = self.entry(image)
        for block in self.blocks:
            h = block(h)
        h = h.flatten(2).mean(2)
        return self.kind(h), F.normalize(self.angle(h), dim=1)


class Segmenter(nn.Module):
    """An encoder and decoder with skips: bilinear resize, a transposed convolution, instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(2, 8, 3, padding=1, padding_mode="reflect")
        self.norm1 = nn.InstanceNorm2d(8, affine=True)
        self.down2 = nn.Conv2d(8, 12, 3, padding=1)
        self.norm2 = nn.InstanceNorm2d(12, affine=True)
        self.deep = nn.Conv2d(12, 12, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.merge2 = nn.Conv2d(20, 8, 3, padding=1)
        self.merge1 = nn.Conv2d(16, 8, 3, padding=1)
        self.mask = nn.Conv2d(8, 3, 1)

    def forward(self, scan: Tensor) -> Tensor:
        a = F.leaky_relu(self.norm1(self.down1(scan)), 0.1)
        b = F.leaky_relu(self.norm2(self.down2(F.max_pool2d(a, 2))), 0.1)
        c = F.mish(self.deep(F.avg_pool2d(b, 2)))
        h = F.relu(self.merge2(torch.cat([self.up2(c), b], 1)))
        h = F.interpolate(h, scale_factor=2.0, mode="bilinear", align_corners=False)
        h = F.relu(self.merge1(torch.cat([a, h], 1)))
        return self.mask(h).log_softmax(1)


class Speech(nn.Module):
    """A filter bank, logarithm of clipped energy, convolutions over time, a GRU in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = nn.Conv1d(1, 10, 16, stride=8, bias=False)
        self.norm = nn.BatchNorm1d(10)
        self.mix = nn.Conv1d(10, 12, 3, padding=1)
        self.rnn = nn.GRU(12, 9, batch_first=True, bidirectional=True)
        self.letters = nn.Linear(18, 6)

    def forward(self, wave: Tensor) -> Tensor:
        energy = self.bank(wave.unsqueeze(1)).square()
        h = torch.log(energy.clamp(min=1e-2))
        h = F.gelu(self.mix(self.norm(h)))
        h, _ = self.rnn(h.transpose(1, 2))
        return self.letters(h).log_softmax(-1)


class Forecaster(nn.Module):
    """Two LSTM layers whose first state comes from static features; reversible scaling of the series."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Linear(4, 10)
        self.cell = nn.Linear(4, 10)
        self.first = nn.LSTM(3, 10, batch_first=True)
        self.second = nn.LSTM(10, 10, batch_first=True)
        self.skip = nn.Linear(3, 10)
        self.horizon = nn.Linear(10, 5)

    def forward(self, series: Tensor, site: Tensor) -> Tensor:
        centre = series.mean(1, keepdim=True)
        spread = series.std(1, keepdim=True) + 1e-3
        x = (series - centre) / spread
        h0, c0 = torch.tanh(self.state(site)).unsqueeze(0), self.cell(site).unsqueeze(0)
        h, _ = self.first(x, (h0, c0))
        h, _ = self.second(h + self.skip(x))
        return self.horizon(h[:, -1]) * spread[:, 0, :1] + centre[:, 0, :1]


class Attention(nn.Module):
    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (w // self.heads) ** 0.5
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w))


class Layer(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.norm_a = nn.LayerNorm(wide, eps=1e-6)
        self.attention = Attention(wide, 4)
        self.norm_b = nn.LayerNorm(wide, eps=1e-6)
        self.grow = nn.Linear(wide, 2 * wide)
        self.shrink = nn.Linear(2 * wide, wide)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm_a(x), mask)
        return x + self.drop(self.shrink(F.gelu(self.grow(self.norm_b(x)), approximate="tanh")))


class Reader(nn.Module):
    """A transformer encoder with a padding mask, mean over what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 16, padding_idx=0)
        self.places = nn.Embedding(14, 16)
        self.layers = nn.ModuleList([Layer(16) for _ in range(4)])
        self.final = nn.LayerNorm(16)
        self.pooled = nn.Linear(16, 16)
        self.topic = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens != 0
        h = self.words(tokens) * 4.0 + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            h = layer(h, mask)
        h = self.final(h) * mask.unsqueeze(-1)
        h = h.sum(1) / mask.sum(1, keepdim=True)
        return self.topic(torch.tanh(self.pooled(h)))


class Molecules(nn.Module):
    """Messages along bonds, added at atoms; a second layer takes the maximum; atoms are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Embedding(8, 12)
        self.message = nn.Linear(15, 12)
        self.update = nn.GRUCell(12, 12)
        self.second = nn.Linear(24, 12)
        self.readout = nn.Linear(12, 1)

    def forward(self, kinds: Tensor, bonds: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.atoms(kinds)
        wide = h.shape[-1]
        take = source.unsqueeze(-1).expand(-1, -1, wide)
        put = target.unsqueeze(-1).expand(-1, -1, wide)
        m = F.relu(self.message(torch.cat([h.gather(1, take), bonds], -1)))
        got = torch.zeros_like(h).scatter_add(1, put, m)
        h = self.update(got.reshape(-1, wide), h.reshape(-1, wide)).reshape(h.shape)
        far = self.second(torch.cat([h.gather(1, take), h.gather(1, put)], -1))
        best = torch.full_like(h, -3.0).scatter_reduce(1, put, far, "amax")
        return F.softplus(self.readout(torch.sigmoid(best) * h).sum(1))


class Clicks(nn.Module):
    """Bags of words and ids: mean of embeddings that are no padding, pairwise products, a cross layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = nn.Embedding(25, 8, padding_idx=0)
        self.ad = nn.Embedding(40, 8)
        self.hour = nn.Embedding(24, 8)
        self.cross = nn.Linear(8, 8)
        self.hidden = nn.Linear(31, 16)
        self.norm = nn.BatchNorm1d(16)
        self.click = nn.Linear(16, 1)

    def forward(self, tags: Tensor, ad: Tensor, hour: Tensor, price: Tensor) -> Tensor:
        there = (tags > 0).to(price.dtype)
        bag = (self.tags(tags) * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True).clamp(min=1.0)
        parts = torch.stack([bag, self.ad(ad), self.hour(hour)], 1)
        pairs = torch.einsum("bif,bjf->bij", parts, parts).reshape(-1, 9)[:, [1, 2, 5]]
        crossed = bag * self.cross(parts[:, 1]) + bag
        h = torch.cat([pairs, crossed, parts[:, 1], parts[:, 2], torch.log1p(price)], 1)
        return torch.sigmoid(self.click(F.relu(self.norm(self.hidden(h)))))


class Boxes(nn.Module):
    """A detector head at two scales: sigmoid for centres, exp for sizes, a grid, objectness times class."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.SiLU(), nn.Conv2d(12, 12, 3, 2, 1), nn.SiLU())
        self.lower = nn.Conv2d(12, 16, 3, 2, 1)
        self.near = nn.Conv2d(12, 8, 1)
        self.far = nn.Conv2d(16, 8, 1)
        self.register_buffer("anchors", torch.tensor([[6.0, 9.0], [14.0, 11.0]]))

    def level(self, raw: Tensor, stride: int, anchor: Tensor) -> tuple[Tensor, Tensor]:
        size = raw.shape[-1]
        ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        grid = torch.stack([xs, ys], -1).to(raw.dtype)
        p = raw.permute(0, 2, 3, 1)
        centre = (p[..., :2].sigmoid() * 2 - 0.5 + grid) * stride
        shape = torch.exp(p[..., 2:4].clamp(max=4.0)) * anchor
        score = p[..., 4:5].sigmoid() * p[..., 5:].softmax(-1)
        return torch.cat([centre - shape / 2, centre + shape / 2], -1).flatten(1, 2), score.flatten(1, 2)

    def forward(self, frame: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(frame)
        box_a, score_a = self.level(self.near(h), 4, self.anchors[0])
        box_b, score_b = self.level(self.far(F.silu(self.lower(h))), 8, self.anchors[1])
        return torch.cat([box_a, box_b], 1), torch.cat([score_a, score_b], 1)


class Towers(nn.Module):
    """Image and text to one space: cosine with a temperature, and the embeddings themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 12, 4, 4)
        self.look = nn.Linear(12, 12)
        self.words = nn.Embedding(30, 12)
        self.read = nn.LSTM(12, 12, batch_first=True)
        self.left = nn.Linear(12, 8, bias=False)
        self.right = nn.Linear(12, 8, bias=False)
        self.warm = nn.Parameter(torch.tensor(1.3))

    def forward(self, picture: Tensor, caption: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = F.relu6(self.look(self.patch(picture).flatten(2).transpose(1, 2))).amax(1)
        b, _ = self.read(self.words(caption))
        a = F.normalize(self.left(a), dim=-1)
        b = F.normalize(self.right(b[:, -1]), dim=-1)
        return (a * b).sum(-1, keepdim=True) * self.warm.exp(), a, b


class Larger(nn.Module):
    """Super-resolution: pixel shuffle on top of a bicubic resize, clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(1, 8, 5, padding=2, padding_mode="replicate")
        self.body = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)])
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.4))
        self.tail = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, small: Tensor) -> Tensor:
        h = first = self.head(small)
        for part in self.body:
            h = h + self.scale * F.softsign(part(h))
        fine = F.pixel_shuffle(self.tail(h + first), 2)
        coarse = F.interpolate(small, scale_factor=2.0, mode="bicubic", align_corners=False)
        return (coarse + 0.5 * fine).clamp(-2.0, 2.0)


class Experts(nn.Module):
    """The two best of six experts, weighted by a softmax of their scores; a running sum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(10, 6)
        self.experts = nn.Parameter(torch.randn(6, 10, 8) * 0.4)
        self.shift = nn.Parameter(torch.randn(6, 8) * 0.2)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, events: Tensor) -> Tensor:
        best, which = self.score(events).topk(2, -1)
        share = best.softmax(-1)
        each = torch.einsum("btf,efo->bteo", events, self.experts) + self.shift
        chosen = each.gather(2, which.unsqueeze(-1).expand(-1, -1, -1, 8))
        h = (chosen * share.unsqueeze(-1)).sum(2)
        return self.out(self.norm(F.celu(h, 1.5).cumsum(1)))
