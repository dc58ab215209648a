"""What a moderation pack has to beat: the base rate, and a linear model on TF-IDF, each fitted on the same rows."""

from __future__ import annotations

import sys

import numpy as np

from spinf_stream.packs.fit import threshold_f1
from spinf_stream.questions.plan import F64, Bool


def majority(y: Bool, count: int) -> tuple[F64, float]:
    """(scores [count], threshold): the share of yes in the fitted rows, flagged when yes is the commoner answer."""
    return np.full(count, y.mean()), 0.5


def tfidf(texts: list[str], y: Bool, test: list[str]) -> tuple[F64, float] | None:
    """(scores of `test`, threshold): words and word pairs, sublinear counts, logistic regression.

    C by five-fold cross-validation on the fitted rows; the threshold is the one of the best F1 over out-of-fold scores
    there, which is how `calibrate` picks a pack's, but that it need not fear an overfitted score.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, cross_val_predict
        from sklearn.pipeline import make_pipeline
    except ImportError:
        print("no TF-IDF baseline: it needs scikit-learn, `pip install scikit-learn`", file=sys.stderr)
        return None
    search = GridSearchCV(
        make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(max_iter=2000)),
        {"logisticregression__C": [0.3, 1, 3, 10, 30, 100]}, scoring="neg_log_loss",
    )  # fmt: skip
    search.fit(texts, y)
    unseen = cross_val_predict(search.best_estimator_, texts, y, cv=5, method="predict_proba")[:, 1]
    return search.predict_proba(test)[:, 1], threshold_f1(unseen, y)
