"""Texts that an export splits in another way: the step, the column, and what about the texts does it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from piped import ask_only, changed, diagnoses, exported, top
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

import data_only

TOPICS = (
    ("market", "stock", "price", "bank"),
    ("game", "team", "match", "goal"),
    ("rain", "sun", "storm", "wind"),
)


@pytest.fixture(autouse=True)
def _only_steps_are_suspected(monkeypatch):
    ask_only(monkeypatch, "steps", "tokenizer")


def texts(*extra):
    """Short texts on three topics; about a third of them have one of the extra words somewhere."""
    random = np.random.default_rng(1)
    topics = random.integers(0, 3, 240)
    written = []
    for topic in topics:
        words = [*random.choice(TOPICS[topic], random.integers(3, 7)), *random.choice(["the", "and", "with"], 2)]
        random.shuffle(words)
        if extra and random.random() < 0.35:
            words.insert(random.integers(0, len(words)), str(random.choice(extra)))
        written.append(" ".join(map(str, words)))
    return np.array(written, dtype=object), topics


def classifier(vectorizer, written, topics):
    return Pipeline([("words", vectorizer), ("clf", LogisticRegression())]).fit(written, topics)


def text_export(model):
    return exported(model, pd.DataFrame({"text": []}))


@pytest.mark.parametrize("kind", [CountVectorizer, TfidfVectorizer])
@pytest.mark.parametrize(
    ("settings", "extra", "trait"),
    [
        ({}, ("café", "naïve"), "accents"),
        ({}, ("рынок", "市場"), "letters beyond a-z"),
        ({"ngram_range": (1, 2)}, ("a", "I"), "one letter"),
        ({"ngram_range": (1, 2), "stop_words": ["the", "and"]}, (), "stop words"),
    ],
    ids=["accents", "alphabets", "letters", "stop words"],
)
def test_what_the_converter_reads_differently_is_named(kind, settings, extra, trait):
    written, topics = texts(*extra)
    model = classifier(kind(**settings), written, topics)
    best = top(model, text_export(model), {"text": written})
    assert best.cause == "tokenizer"
    assert best.explained_share > 0.95
    assert "words (step 'words', column text" in best.culprit
    assert trait in best.culprit


@pytest.mark.parametrize(
    ("change", "extra", "trait"),
    [
        (lambda model: setattr(model[0], "lowercase", False), ("Market", "SUN"), "capital letters"),
        (lambda model: setattr(model[0], "token_pattern", "[^ ]+"), ("e-market", "team!"), "punctuation"),
        (lambda model: setattr(model[0], "token_pattern", "[a-z]+"), ("sun_market", "team_goal"), "underscores"),
    ],
    ids=["case", "punctuation", "underscores"],
)
def test_an_export_with_other_settings_is_told_apart(change, extra, trait):
    written, topics = texts(*extra)
    model = classifier(TfidfVectorizer(), written, topics)
    best = top(model, text_export(changed(model, change)), {"text": written})
    assert best.cause == "tokenizer"
    assert trait in best.culprit


def test_the_words_are_told_and_the_column_is_one_of_several():
    written, topics = texts("café")
    frame = pd.DataFrame({"text": written, "length": [float(len(text)) for text in written]})
    columns = ColumnTransformer([("words", TfidfVectorizer(), "text"), ("rest", "passthrough", ["length"])])
    model = Pipeline([("prep", columns), ("clf", LogisticRegression(max_iter=1000))]).fit(frame, topics)
    best = top(model, exported(model, frame), frame)
    assert best.cause == "tokenizer"
    assert "step 'prep__words', column text" in best.culprit
    assert "'café'" in best.evidence


def test_words_that_are_only_weighed_differently_are_no_matter_of_splitting():
    """skl2onnx takes the logarithm of a sublinear count from something else."""
    written, topics = texts()
    model = classifier(TfidfVectorizer(sublinear_tf=True), written, topics)
    best = top(model, text_export(model), {"text": written})
    assert best.cause == "preprocessing-differs"
    assert "words" in best.culprit


def test_a_faithful_export_needs_no_explanation():
    written, topics = texts("Market", "2024")
    model = classifier(TfidfVectorizer(), written, topics)
    report = data_only.explain(model, text_export(model), {"text": written})
    assert report.passed
    assert not report.diagnoses


def test_a_wrong_model_behind_the_words_is_left_to_others():
    written, topics = texts()
    model = classifier(CountVectorizer(), written, topics)
    other = changed(model, lambda copied: copied[-1].coef_.__imul__(1.5))
    assert diagnoses(model, text_export(other), {"text": written}) == ()


def test_a_single_text_is_enough():
    written, topics = texts("café")
    model = classifier(TfidfVectorizer(), written, topics)
    best = top(model, text_export(model), {"text": np.array(["the café and the bank"], dtype=object)})
    assert best.cause == "tokenizer"
    assert "column text" in best.culprit
