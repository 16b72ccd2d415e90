"""The torch networks of the corpus: small, of real structure; each class is a factory for its file of weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Mlp(nn.Module):
    """Three hidden layers with different activations and a normalised trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(12, 32)
        self.norm = nn.LayerNorm(32)
        self.middle = nn.Linear(32, 32)
        self.narrow = nn.Linear(32, 16)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.norm(self.entry(x)))
        h = h + torch.tanh(self.middle(h))
        h = F.leaky_relu(self.narrow(h), 0.05)
        return torch.softmax(self.head(self.drop(h)), dim=-1)


class Cnn(nn.Module):
    """Convolutions with batch norm, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(12, eps=1e-3)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(24, eps=1e-3)
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1, groups=4)
        self.act = nn.ELU(0.7)
        self.fc = nn.Linear(24, 6)

    def forward(self, image: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.bn1(self.conv1(image))), 2)
        h = F.relu6(self.bn2(self.conv2(h)) * 2)
        h = self.act(self.conv3(h))
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))


class Block(nn.Module):
    """A residual block with a projection where the width changes."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv_a = nn.Conv2d(wide, out, 3, stride=stride, padding=1, bias=False)
        self.bn_a = nn.BatchNorm2d(out)
        self.conv_b = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn_b = nn.BatchNorm2d(out)
        self.down = nn.Conv2d(wide, out, 1, stride=stride) if stride > 1 or wide != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn_a(self.conv_a(x)))
        return F.relu(self.bn_b(self.conv_b(h)) + self.down(x))


class ResNet(nn.Module):
    """Four residual blocks in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stage1 = nn.Sequential(Block(8, 8, 1), Block(8, 8, 1))
        self.stage2 = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.fc = nn.Linear(16, 5)

    def forward(self, image: Tensor) -> Tensor:
        h = self.stage2(self.stage1(F.relu(self.stem(image))))
        return self.fc(h.mean((2, 3)))


class UNet(nn.Module):
    """An encoder and a decoder that resizes, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = nn.Conv2d(2, 8, 3, padding=1)
        self.enc2 = nn.Conv2d(8, 12, 3, padding=1)
        self.bottom = nn.Conv2d(12, 12, 3, padding=2, dilation=2)
        self.norm = nn.GroupNorm(3, 12)
        self.dec2 = nn.Conv2d(24, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.dec1 = nn.Conv2d(16, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        one = F.silu(self.enc1(image))
        two = F.silu(self.enc2(F.avg_pool2d(one, 2)))
        low = F.silu(self.norm(self.bottom(F.max_pool2d(two, 2))))
        high = F.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        h = F.silu(self.dec2(torch.cat([high, two], 1)))
        h = F.silu(self.dec1(torch.cat([self.up(h), one], 1)))
        return torch.sigmoid(self.out(h))


class LstmTagger(nn.Module):
    """A bidirectional LSTM, then one in a single direction, with attention over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6, 10, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(20, 12, batch_first=True)
        self.score = nn.Linear(12, 1)
        self.head = nn.Linear(12, 3)

    def forward(self, series: Tensor) -> Tensor:
        h, _ = self.first(series)
        h, (last, _) = self.second(torch.tanh(h))
        weight = torch.softmax(self.score(h), dim=1)
        return self.head((weight * h).sum(1) + last[-1])


class GruForecast(nn.Module):
    """A GRU whose first state is computed from static features."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(3, 14)
        self.gru = nn.GRU(5, 14, batch_first=True)
        self.gate = nn.Linear(14, 14)
        self.level = nn.Linear(14, 4)
        self.spread = nn.Linear(14, 4)

    def forward(self, series: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.tanh(self.start(static)).unsqueeze(0)
        h, _ = self.gru(series, first)
        h = h[:, -1] * torch.sigmoid(self.gate(h.mean(1)))
        return self.level(h), F.softplus(self.spread(h)) + 0.05


class Attention(nn.Module):
    """Multi-head attention written out, with a padding mask."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, w = x.shape
        q, k, v = (
            part(x).reshape(b, t, self.heads, w // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        score = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
        if mask is not None:
            score = score.masked_fill(mask[:, None, None, :] == 0, -1e4)
        if self.causal:
            above = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
            score = score.masked_fill(above, -1e4)
        h = torch.softmax(score, dim=-1) @ v
        return self.out(h.transpose(1, 2).reshape(b, t, w))


class EncoderLayer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-5)
        self.attn = Attention(width, 4)
        self.norm2 = nn.LayerNorm(width, eps=1e-5)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """A token classifier: embeddings, positions, three layers, a masked mean."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 24)
        self.positions = nn.Embedding(16, 24)
        self.layers = nn.ModuleList(EncoderLayer(24) for _ in range(3))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            h = layer(h, mask)
        kept = mask.unsqueeze(-1).to(h.dtype)
        return self.head((self.norm(h) * kept).sum(1) / kept.sum(1))


class RmsNorm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * self.weight


class DecoderLayer(nn.Module):
    """A causal layer with a gated feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attn = Attention(width, 2, causal=True)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A small causal language model with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 16)
        wave = torch.arange(12)[:, None] / 100 ** (torch.arange(8) / 8)
        self.register_buffer("waves", torch.cat([wave.sin(), wave.cos()], 1))
        self.layers = nn.ModuleList(DecoderLayer(16) for _ in range(2))
        self.norm = RmsNorm(16)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids) + self.waves
        for layer in self.layers:
            h = layer(h)
        return self.norm(h) @ self.tokens.weight.T


class Gnn(nn.Module):
    """Two rounds of messages over edges, a sum and a maximum over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.ModuleList([nn.Linear(5, 12), nn.Linear(12, 12)])
        self.own = nn.ModuleList([nn.Linear(5, 12), nn.Linear(12, 12)])
        self.head = nn.Linear(24, 2)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = nodes
        for message, own in zip(self.message, self.own, strict=True):
            sent = message(h)
            taken = torch.gather(sent, 1, source.unsqueeze(-1).expand(-1, -1, 12))
            total = torch.zeros_like(sent).scatter_add(1, target.unsqueeze(-1).expand(-1, -1, 12), taken)
            h = F.relu(own(h) + total / 3)
        return self.head(torch.cat([h.sum(1), h.amax(1)], -1))


class Recommender(nn.Module):
    """Embeddings of categories, their pairwise products, and dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(30, 8)
        self.item = nn.Embedding(40, 8)
        self.shop = nn.EmbeddingBag(20, 8, mode="sum")
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.Sigmoid(), nn.Linear(16, 1))

    def forward(self, user: Tensor, item: Tensor, shops: Tensor, dense: Tensor) -> Tensor:
        d = self.dense(dense)
        parts = torch.stack([self.user(user), self.item(item), self.shop.weight[shops].sum(1), d], 1)
        product = parts @ parts.transpose(1, 2)
        rows, columns = torch.triu_indices(4, 4, 1)
        return torch.sigmoid(self.top(torch.cat([d, product[:, rows, columns] / 8], 1))).squeeze(-1)


class Detector(nn.Module):
    """A backbone with two heads: boxes decoded around anchors, and scores of the best."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1),
        )  # fmt: skip
        self.box = nn.Conv2d(16, 4, 1)
        self.cls = nn.Conv2d(16, 3, 1)
        ys, xs = torch.meshgrid(torch.arange(5.0), torch.arange(5.0), indexing="ij")
        self.register_buffer("grid", torch.stack([xs, ys], -1).reshape(1, 25, 2))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        h = self.backbone(image)
        box = self.box(h).flatten(2).transpose(1, 2)
        scores = torch.sigmoid(self.cls(h).flatten(2).transpose(1, 2))
        centre = (torch.sigmoid(box[..., :2]) * 2 - 0.5 + self.grid) * 4
        size = torch.exp(box[..., 2:].clamp(max=4.0)) * 4
        corners = torch.cat([centre - size / 2, centre + size / 2], -1)
        best, _ = scores.max(-1)
        return corners, best


class Fusion(nn.Module):
    """An image, a table row and a text in; a price and a risk out."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.table = nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 12), nn.Softplus(beta=2.0))
        self.words = nn.Embedding(25, 10, padding_idx=0)
        self.mix = nn.Bilinear(12, 10, 8)
        self.price = nn.Linear(8 + 6 * 16, 1)
        self.risk = nn.Sequential(nn.Linear(8 + 12, 10), nn.Hardtanh(-0.8, 0.8), nn.Linear(10, 3))

    def forward(self, image: Tensor, row: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        seen, read = self.vision(image), self.words(text).mean(1)
        told = self.table(row)
        mixed = torch.tanh(self.mix(told, read))
        price = self.price(torch.cat([mixed, seen], 1)).squeeze(-1)
        return price.abs().sqrt() * torch.sign(price), torch.log_softmax(self.risk(torch.cat([mixed, told], 1)), -1)


class Mobile(nn.Module):
    """Depthwise convolutions, squeeze-and-excite, hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.expand = nn.Conv2d(8, 16, 1)
        self.depth = nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.squeeze = nn.Conv2d(16, 4, 1)
        self.excite = nn.Conv2d(4, 16, 1)
        self.project = nn.Conv2d(16, 8, 1)
        self.hard = nn.Hardsigmoid()
        self.fc = nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Tensor:
        h = F.hardswish(self.stem(image))
        e = F.hardswish(self.depth(F.hardswish(self.expand(h))))
        s = self.hard(self.excite(F.relu(self.squeeze(e.mean((2, 3), keepdim=True)))))
        return self.fc((h + self.project(e * s)).amax((2, 3)))


class Tcn(nn.Module):
    """Dilated causal convolutions over a signal, with instance norm and PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(4, 8, 3)
        self.norm = nn.InstanceNorm1d(8, affine=True)
        self.prelu = nn.PReLU(8)
        self.two = nn.Conv1d(8, 8, 3, dilation=2)
        self.three = nn.Conv1d(8, 8, 3, dilation=4)
        self.head = nn.Linear(8, 2)

    def forward(self, signal: Tensor) -> Tensor:
        h = self.prelu(self.norm(self.one(F.pad(signal, (2, 0)))))
        h = h + F.relu(self.two(F.pad(h, (4, 0))))
        h = h + F.relu(self.three(F.pad(h, (8, 0))))
        return self.head((h.cumsum(-1) / 10)[..., -1])


class Vit(nn.Module):
    """A vision transformer with torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 20, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 20))
        self.places = nn.Parameter(torch.zeros(1, 10, 20))
        self.norm1 = nn.LayerNorm(20)
        self.attention = nn.MultiheadAttention(20, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(20)
        self.ffn = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 20))
        self.head = nn.Linear(20, 5)

    def forward(self, image: Tensor) -> Tensor:
        h = self.patch(image).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(h.shape[0], -1, -1), h], 1) + self.places
        n = self.norm1(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        h = h + self.ffn(self.norm2(h))
        return F.normalize(self.head(h[:, 0]), dim=-1) * 4
