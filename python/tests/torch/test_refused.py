"""ServerOptimizer and DiLoCo reject unsupported programs with an error that names the cause."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, Cluster

import perdure

torch = pytest.importorskip("torch")
nn = torch.nn


def refuses(match: str) -> Any:
    return pytest.raises(perdure.UsageError, match=match)


def test_settings_of_0() -> None:
    """Servers replace 0 by the default, so a rule with momentum 0 must be rejected, not trained with 0.9."""
    for make, said in (
        (lambda: perdure.Nesterov(0.7, 0.0), "Nesterov: momentum is 0.0"),
        (lambda: perdure.Momentum(0.7, 0), "Momentum: momentum is 0, "),
        (lambda: perdure.Adam(1e-3, 0.0), "Adam: beta1 is 0.0, "),
        (lambda: perdure.Adam(1e-3, beta2=0.0), "Adam: beta2 is 0.0, "),
        (lambda: perdure.Adam(1e-3, epsilon=0.0), "Adam: epsilon is 0.0, "),
        (lambda: perdure.Adagrad(1e-3, 0.0), "Adagrad: epsilon is 0.0, "),
        (lambda: perdure.RowwiseAdagrad(1e-3, 0.0), "RowwiseAdagrad: epsilon is 0.0, "),
        (lambda: perdure.FTRL(1e-3, 0.0), "FTRL: beta is 0.0, "),
        (lambda: perdure.Adam(1e-3, float("nan")), "Adam: beta1 is nan, "),
    ):
        with refuses(said):
            make()


def test_rules(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    of = list(model.parameters())
    with perdure.start(out=tmp_path / "run", clocks=9, args=SMALL) as job:
        for rule, said in (
            (torch.optim.Adam(of, 1e-3, betas=(0.0, 0.9)), "beta1 is 0.0"),
            (torch.optim.Adam(of, 1e-3, weight_decay=0.1, decoupled_weight_decay=True), "weight_decay of Adam"),
            (perdure.Add(), "perdure.Add"),
            (perdure.FTRL(0.1), "perdure.FTRL"),
            (perdure.Adam(1e-3, decay=0.1), "perdure.Adam has decoupled decay"),
            (perdure.SGD(1e-3, decay=0.1, clip_norm=1.0), "decay and clipping"),
        ):
            with refuses(said):
                perdure.ServerOptimizer(job, model, rule)
        inner = torch.optim.SGD(of, 0.1)
        with refuses("the outer rule"):
            perdure.DiLoCo(job, model, inner, outer=perdure.Nesterov(0.7, 0.9, decay=0.1))
        with refuses("perdure.Add"):
            perdure.DiLoCo(job, model, inner, outer=perdure.Add())
        foreign = torch.optim.SGD([*of, *nn.Linear(2, 2).parameters()], 0.1)
        with refuses("the inner optimizer has parameters that the model does not train"):
            perdure.DiLoCo(job, model, foreign)
        for dtype in (torch.float64, torch.complex64):
            with refuses(f"weight has type {dtype}"):
                perdure.ServerOptimizer(job, nn.Linear(3, 2, dtype=dtype), perdure.SGD(0.1))
        assert job.now == 0


def test_steps(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    of = list(model.parameters())
    sgd = torch.optim.SGD(of, 0.1)
    with perdure.start(out=tmp_path / "run", clocks=9, args=SMALL) as job:
        with perdure.ServerOptimizer(job, model, sgd) as p:
            with refuses("second model"):
                perdure.ServerOptimizer(job, nn.Linear(1, 1), perdure.SGD(0.1))
            model(torch.tensor([1])).sum().backward()
            with refuses("the gradient of 0.weight is sparse"):
                p.step()
            model[0].sparse = False
            p.zero_grad()
            model(torch.tensor([1])).sum().backward()
            with refuses("call ServerOptimizer.step"):
                sgd.step()
            with refuses("clip_grad_norm_ changes"):
                p.clip_grad_norm_(1.0)
            other = nn.Linear(1, 1)
            other(torch.ones(1, 1)).backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)  # for other parameters it works as usual
            with refuses("weighted=True"):
                p.step(weight=5)
            assert p.step() == 2
        sgd.step()


def test_weights(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with perdure.start(out=tmp_path / "run", clocks=9, args=SMALL) as job:
        p = perdure.ServerOptimizer(job, model, perdure.SGD(0.1), weighted=True)
        model(torch.ones(1, 3)).sum().backward()
        with refuses(r"call step\(weight=…\)"):
            p.step()
        assert p.step(weight=32) == 2


def second(cluster: Cluster, first: Any, model: Any) -> str:
    """Return the error that a job's second slot gets if its model differs from the first slot's."""
    jobs = [cluster.join(0), cluster.join(1)]

    def begin() -> None:
        with contextlib.suppress(perdure.PerdureError):  # waits for the second slot until the job is ended
            perdure.ServerOptimizer(jobs[0], first, perdure.SGD(0.1))

    begun, clock = threading.Event(), jobs[0].clock

    def tick() -> int:
        begun.set()  # the first slot has created its tables
        return clock()

    jobs[0].clock = tick  # type: ignore[method-assign]
    thread = threading.Thread(target=begin)
    thread.start()
    begun.wait()
    with pytest.raises(perdure.UsageError) as told:
        perdure.ServerOptimizer(jobs[1], model, perdure.SGD(0.1))
    cluster.end()
    thread.join()
    return str(told.value)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (nn.Linear(3, 2), "different name, shape or type for weight"),
        (nn.Linear(2, 3, dtype=torch.float16), "different name, shape or type for weight"),
        (nn.Linear(2, 3, bias=False), "has more parameters and buffers"),
        (nn.BatchNorm1d(3), "all slots must use the same"),  # the message names a buffer or a weight
        (nn.Sequential(nn.Linear(2, 3)), "different name, shape or type for 0.weight"),
    ],
)
def test_other_model(cluster: Cluster, theirs: Any, said: str) -> None:
    """Different models are rejected even if they have as many rows as the model of slot 0."""
    assert said in second(cluster, nn.Linear(2, 3), theirs)


def test_more_parameters(cluster: Cluster) -> None:
    said = second(cluster, nn.Linear(2, 3, bias=False), nn.Linear(2, 3))
    assert "has no bias" in said


def test_larger_model(cluster: Cluster) -> None:
    said = second(cluster, nn.Linear(2, 3), nn.Linear(200, 30))
    assert said.startswith("another slot started with a model of a different size")


def test_state_without_a_store(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2000, 100)
    monkeypatch.setattr(job, "_state_bytes", 1 << 20)
    monkeypatch.setattr(job, "_state_why", "states larger than 1 MiB are kept elsewhere")
    with refuses(r"1\.5 MiB: states larger than 1 MiB are kept elsewhere"):
        perdure.DiLoCo(job, model, torch.optim.AdamW(model.parameters(), 1e-3))
    assert job.now == 0


def test_loaders_without_a_position(job: perdure.Job) -> None:
    model, loader = nn.Linear(2, 1), torch.utils.data.DataLoader([1, 2])
    for make in (
        lambda: perdure.ServerOptimizer(job, model, perdure.SGD(0.1), state=[loader]),
        lambda: perdure.DiLoCo(job, model, torch.optim.SGD(model.parameters(), 0.1), state=[loader]),
    ):
        with refuses("the DataLoader in state= has no state_dict .* StatefulDataLoader"):
            make()
    assert job.now == 0


def test_warning_without_a_store(job: perdure.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_state_why", "this machine cannot reach the store")
    monkeypatch.setenv("PERDURE_HOST", "0")
    model = nn.Linear(2, 1)
    with pytest.warns(RuntimeWarning, match="lost to other machines, since this machine cannot reach the store"):
        perdure.DiLoCo(job, model, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("how", ["lazy", "lazy buffer", "meta", "meta buffer", "meta frozen"])
def test_models_without_values(tmp_path: Path, how: str) -> None:
    said = "lazy module" if "lazy" in how else "meta device"
    model = nn.Sequential(nn.LazyLinear(4) if how == "lazy" else nn.Linear(4, 4), nn.Linear(4, 1))
    if how == "lazy buffer":
        model.append(nn.LazyBatchNorm1d(affine=False))
    elif how == "meta buffer":
        model.register_buffer("of", torch.empty(3, device="meta"))
    elif how != "lazy":
        model[0].to("meta").requires_grad_(how == "meta")
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        for make in (
            lambda: perdure.ServerOptimizer(job, model, perdure.SGD(0.1)),
            lambda: perdure.DiLoCo(job, model, torch.optim.SGD(model.parameters(), 0.1)),
        ):
            with refuses(rf"^(0\.weight|of|2\.running_mean) .*{said}"):
                make()
        assert job.now == 0
