"""What a moderation pack has to beat: the majority class, and a linear model on TF-IDF of the same training half."""

from __future__ import annotations

import sys
from collections import Counter
from typing import NamedTuple

import numpy as np

from spinf_stream.packs.figures import auc


class Baseline(NamedTuple):
    right: int
    log_loss: float
    auc: dict[str, float]  # by label


def majority(train: list[str], train_labels: list[str], test: list[str], test_labels: list[str]) -> Baseline:
    """Says the commonest label, with the shares of the training labels as its probabilities."""
    counts = Counter(train_labels)
    best = counts.most_common(1)[0][0]
    shares = {k: n / len(train_labels) for k, n in counts.items()}
    loss = float(np.mean([-np.log(max(shares.get(l, 0.0), 1e-6)) for l in test_labels]))
    return Baseline(sum(l == best for l in test_labels), loss, dict.fromkeys(counts, 0.5))


def tfidf(train: list[str], train_labels: list[str], test: list[str], test_labels: list[str]) -> Baseline | None:
    """Words and word pairs, sublinear counts, C chosen by five-fold cross-validation on the training half."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.pipeline import make_pipeline
    except ImportError:
        print('no TF-IDF baseline: it needs scikit-learn, `pip install "spinf-stream[bench]"`', file=sys.stderr)
        return None
    model = GridSearchCV(
        make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(max_iter=2000)),
        {"logisticregression__C": [0.3, 1, 3, 10, 30]}, scoring="neg_log_loss",
    )  # fmt: skip
    model.fit(train, train_labels)
    share = model.predict_proba(test)
    names = list(model.classes_)
    truth = np.array([names.index(l) for l in test_labels])
    rows = np.arange(len(truth))
    return Baseline(
        int((share.argmax(1) == truth).sum()),
        float(np.mean(-np.log(np.clip(share[rows, truth], 1e-6, None)))),
        {n: auc(share[:, c], truth == c) for c, n in enumerate(names)},
    )
