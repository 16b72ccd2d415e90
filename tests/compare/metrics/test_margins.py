"""How far the best class is ahead, where scores are infinite too."""

import numpy as np
import pytest

from likewise.compare.align import margins
from likewise.contracts.comparison import Tolerance
from likewise.contracts.models import Kind


@pytest.mark.parametrize(
    ("scores", "ahead", "noise"),
    [
        ([1.0, 3.0, 2.0], 1.0, 2e-4 + 1e-3 * 5.0),
        ([-np.inf, 0.0, 1.0], 1.0, 2e-4 + 1e-3 * 1.0),
        # A score without bounds must not excuse a flip by a noise without bounds.
        ([np.inf, 1.0, 2.0], np.inf, 2e-4 + 1e-3 * 2.0),
        ([np.inf, np.inf, 0.0], 0.0, 2e-4),
        ([-np.inf, -np.inf, -np.inf], 0.0, 2e-4),
    ],
)
def test_an_infinite_score_is_ahead_by_all_and_adds_no_noise(scores, ahead, noise):
    found = margins(np.array([scores], np.float32), Kind.SCORE, Tolerance(1e-4, 1e-3))
    assert found[0].tolist() == [ahead]
    assert found[1].tolist() == pytest.approx([noise])


def test_scores_too_far_apart_for_a_double_are_not_noise():
    for tolerance in (Tolerance(0.0, 1e-3), Tolerance(0.0, 1.5), Tolerance(1e-4, 0.0)):
        ahead, noise = margins(np.array([[1.7e308, -1.7e308]]), Kind.SCORE, tolerance)
        assert not ahead <= noise
    ahead, noise = margins(np.array([[1.7e308, 1.7e308]]), Kind.SCORE, Tolerance(1e-4, 0.0))
    assert ahead <= noise
