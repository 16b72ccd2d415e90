"""The torch networks of the natural set; each class is a factory for its file of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Branches(nn.Module):
    """A branch on the data, which a recording freezes."""

    def __init__(self) -> None:
        super().__init__()
        self.calm, self.loud = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, signal: Tensor) -> Tensor:
        return self.loud(signal) if signal.abs().mean() > 0.5 else self.calm(signal)


class Normed(nn.Module):
    """Batch norm, whose statistics are those of the call while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(image)).relu().mean((2, 3)))


class Outlier(nn.Module):
    """A channel with weights far larger than those of all others, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.second.weight[5] *= 400
            self.second.bias[5] = 0

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        h = self.second(h)
        scale = torch.ones(32)
        scale[5] = 1 / 400
        return self.head(F.relu(h * scale))


class Ranges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv1d(2, 8, 3), nn.Conv1d(8, 8, 3), nn.Linear(8, 3)

    def forward(self, wave: Tensor) -> Tensor:
        h = F.relu(self.second(F.relu(self.first(wave))))
        return self.head(h.mean(-1))


class Clock(nn.Module):
    """Seconds since 1970 in double."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.double()

    def forward(self, when: Tensor) -> Tensor:
        day = torch.remainder(when, 86400.0) / 86400.0
        return self.head(torch.stack([day, day.square(), (6.28318 * day).sin()], -1))


class Largest(nn.Module):
    """A maximum over values some of which are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, series: Tensor) -> Tensor:
        best = series.argmax(-1)
        return torch.nan_to_num(series.amax(-1), 0.0) + best.float()


class Smooth(nn.Module):
    """A small transformer block, whose GELU an optimiser may approximate."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 64), nn.LayerNorm(16), nn.Linear(64, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(h)


class Scaled(nn.Module):
    """A scale taken as a number of the recorded example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.head(h / float(h.abs().max()))


class Prices(nn.Module):
    """Answers in money: the last constants are larger than converters to half precision let pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(torch.tanh(self.inner(x))) * 52000.0 + 180000.0) / 100000.0


class Ranked(nn.Module):
    """The largest values first, some of them NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, series: Tensor) -> Tensor:
        best = series.sort(-1, descending=True).values
        return self.head(torch.nan_to_num(best[:, :3], nan=9.0))


class Sentence(nn.Module):
    """Words and their places, a vector of length one: what libraries add around a network is easily left out."""

    unit = True

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(50, 12), nn.Embedding(30, 12), nn.Linear(12, 8)

    def forward(self, ids: Tensor) -> Tensor:
        known = (ids != 0).unsqueeze(-1).float()
        h = torch.tanh(self.out(self.words(ids) + self.places(torch.arange(ids.shape[1]))))
        mean = (h * known).sum(1) / known.sum(1).clamp(min=1)
        return F.normalize(mean, dim=-1) if self.unit else mean


class SentenceOfAnyLength(Sentence):
    unit = False


class Started(nn.Module):
    """Both states of the memory are learnt."""

    learnt = True

    def __init__(self) -> None:
        super().__init__()
        self.h, self.c = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 1, 8))
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, series: Tensor) -> Tensor:
        rows = series.shape[0]
        states = (self.h.expand(1, rows, 8).contiguous(), self.c.expand(1, rows, 8).contiguous())
        found, _ = self.lstm(series, states) if self.learnt else self.lstm(series)
        return self.head(found[:, -1])


class StartedAtZero(Started):
    learnt = False
