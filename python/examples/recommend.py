"""A factorisation machine on MovieLens that predicts which film a user likes after which. It needs only numpy.

    perdure data fetch movielens-100k
    python -m perdure launch --nproc 2 --recovery resend:auto recommend.py --data data/movielens-100k

Each feature has one weight and 8 factors in two sparse tables, which create a row when they first see a feature.
"""

import argparse
from pathlib import Path

import numpy as np

import perdure

p = argparse.ArgumentParser()
p.add_argument("--data", type=Path, default=Path("data/movielens-100k"))
p.add_argument("--clocks", type=int, default=500)
p.add_argument("--batch", type=int, default=256)
a = p.parse_args()
FACTORS = 8


def feature(kind, value):
    """Return a row number, which may be any 64-bit value."""
    return kind << 32 | value


ratings = [line.split("\t") for line in (a.data / "ml-100k.inter").read_text().splitlines()[1:]]
ratings = sorted((int(time), int(user), int(film), float(stars)) for user, film, stars, time in ratings)
before, rows = {}, []  # the film that a user rated before
for _, user, film, _ in ratings:
    rows.append([feature(1, user), feature(2, film), feature(3, before.get(user, 0))])
    before[user] = film
x, y = (
    np.array(rows),
    np.array([stars >= 4 for *_, stars in ratings], np.float32),
)  # sorted by time: the last tenth is the test set
cut = len(y) * 9 // 10


def forward(ids):
    """Return the scores, and the values that the gradients need. Each row of ids contains a sample's features."""
    unique, where = np.unique(ids, return_inverse=True)
    where = where.reshape(ids.shape)
    w, v = weights.get(unique)[where, 0], factors.get(unique)[where]
    total = v.sum(1)
    score = bias.get([0])[0, 0] + w.sum(1) + 0.5 * ((total**2).sum(1) - (v**2).sum((1, 2)))
    return score, unique, where, v, total


def auc(score, liked):
    """Return the probability that a liked film scores higher than another one."""
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    n = liked.sum()
    return (rank[liked > 0].sum() - n * (n + 1) / 2) / (n * (len(liked) - n))


with perdure.start() as job:
    rule = perdure.Adagrad(0.1)
    bias = job.table("bias", 64, dim=1, rule=rule)
    weights = job.table("weights", dim=1, rule=rule)
    factors = job.table("factors", dim=FACTORS, rule=rule, init="normal", scale=0.05)
    while (
        clock := job.now
    ) < a.clocks and not job.ended:  # clock and slot determine the batch, so there is no state to save
        pick = np.random.default_rng([clock, job.slot]).integers(0, cut, a.batch)
        score, unique, where, v, total = forward(x[pick])
        error = (1 / (1 + np.exp(-score)) - y[pick]).astype(np.float32) / a.batch
        dw, dv = np.zeros((len(unique), 1), np.float32), np.zeros((len(unique), FACTORS), np.float32)
        np.add.at(dw[:, 0], where, error[:, None])
        np.add.at(dv, where, error[:, None, None] * (total[:, None] - v) + 1e-4 * v / a.batch)
        bias.inc([0], [[error.sum()]])
        weights.inc(unique, dw)
        factors.inc(unique, dv)
        job.clock()
        job.report(train_loss=float(np.logaddexp(0, score * (1 - 2 * y[pick])).mean()), samples=a.batch)
    if job.slot == 0:
        print(f"AUC of the last tenth: {auc(forward(x[cut:])[0], y[cut:]):.4f}", flush=True)
