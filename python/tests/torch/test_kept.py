"""A slot's state is restored exactly, with its types, or rejected before training starts."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL
from launched import Death, hash_of, lives

import perdure
from perdure import _state

torch = pytest.importorskip("torch")
nn = torch.nn


def through(state: Any) -> Any:
    encoded = _state.Encoded(state)
    data = np.empty(encoded.size, np.uint8)
    encoded.write(data)
    return _state.decode(data.tobytes())


def test_tensors() -> None:
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.uint16, torch.bool, torch.int64):
        for shape in ((), (0,), (3, 0), (2, 3)):
            was = torch.randn(shape).to(torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
            now = through({"t": was})["t"]
            assert (now.dtype, now.shape) == (was.dtype, was.shape)
            assert now.contiguous().view(-1).view(torch.uint8).equal(was.view(-1).view(torch.uint8))
    turned = torch.arange(6.0).reshape(2, 3).t()
    assert through([turned])[0].equal(turned)


def test_pieces() -> None:
    """A state is read in pieces of any size, from any position."""
    state = {"large": torch.arange(50_000.0), "small": np.arange(3), "turned": torch.arange(6.0).reshape(2, 3).t()}
    encoded = _state.Encoded(state)
    whole = np.empty(encoded.size, np.uint8)
    encoded.write(whole)
    for size in (1000, 4096, encoded.size + 1):
        piece = np.empty(size, np.uint8)
        for at in range(0, encoded.size, size):
            count = encoded.read(at, piece)
            assert count == min(size, encoded.size - at)
            assert (piece[:count] == whole[at : at + count]).all()
    state["small"][0] = 7  # small values are copied, since a loader's threads may change them
    encoded.write(again := np.empty_like(whole))
    assert (again == whole).all()


def test_streamed_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large state is stored in pieces. If the program cannot read it, the step fails with the reason."""
    from perdure import job as of

    monkeypatch.setattr(of, "_PIECE", 5000)
    with perdure.start(out=tmp_path / "run", clocks=9, args=SMALL) as job:
        for number in range(3):
            encoded = _state.Encoded({"number": number, "weights": torch.full((9000,), float(number))})
            job._save(encoded)
            assert job._sending is not None
            job.clock()
            saved, _ = job._load()
            assert saved["number"] == number
            assert saved["weights"].equal(torch.full((9000,), float(number)))

        def broken(at: int, to: Any) -> int:
            raise RuntimeError(f"no GPU at {at}")

        monkeypatch.setattr(encoded, "read", broken)
        job._save(encoded)
        with pytest.raises(RuntimeError, match="no GPU at 0"):
            job.clock()
        job.save_state(b"small")  # the step can be repeated
        job.clock()
        assert job.load_state() == b"small"


class Wrapped(torch.Tensor):
    """A tensor subclass, like those of 8-bit optimizers."""


class Own(torch.optim.Optimizer):
    """SGD with a momentum of a different type than the parameters."""

    def __init__(self, parameters: Any, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                of = self.state[p]
                if not of and self.dtype is Wrapped:
                    of["m"] = torch.zeros_like(p).as_subclass(Wrapped)
                elif not of:
                    of["m"] = torch.zeros_like(p, dtype=self.dtype)
                of["m"].mul_(0.9).add_(p.grad.to(of["m"].dtype))
                p.sub_((group["lr"] * of["m"]).to(p.dtype))


class Place:
    """Counts steps and generates data."""

    def __init__(self, seed: int = 0) -> None:
        self.steps, self.of = 0, torch.Generator().manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "of": self.of.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.of.set_state(state["of"])


def backward(model: Any, place: Place) -> None:
    x = torch.randn(8, 4, generator=place.of).to(next(model.parameters()).dtype)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    place.steps += 1


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize(
    ("of", "momentum"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float32, torch.float64)],
)
def test_optimizer_states_keep_their_types(tmp_path: Path, of: Any, momentum: Any, drafts: bool) -> None:
    def life(job: perdure.Job, number: int) -> Any:
        torch.manual_seed(0)
        model, place = nn.Linear(4, 1).to(of), Place()
        inner = Own(model.parameters(), momentum)
        with perdure.DiLoCo(job, model, inner, sync_every=4, state=[place]):
            while place.steps < 12:
                inner.zero_grad()
                backward(model, place)
                inner.step()
                if deaths and number == 0 and place.steps == 6:
                    raise Death
        m = inner.state[model.weight]["m"]
        return m.dtype, m.float().tolist(), [p.tolist() for p in model.parameters()]

    found = []
    for deaths in (0, 1):
        found.append(lives(tmp_path / str(deaths), life, deaths, drafts=drafts))
    assert found[0] == found[1]
    assert found[0][0] == momentum


def test_load_says_what_it_cannot_retype() -> None:
    from perdure._inner import load

    class Copies(Own):
        def state_dict(self) -> dict[str, Any]:
            state = super().state_dict()
            return state | {"state": {k: dict(v) for k, v in state["state"].items()}}

    model = nn.Linear(4, 1)
    inner = Copies(model.parameters(), torch.bfloat16)
    backward(model, Place())
    inner.step()
    with pytest.warns(RuntimeWarning, match=r"Copies .*\['m'\]: torch.bfloat16"):
        load(inner, through(inner.state_dict()))


def test_refused_at_the_first_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    inner = Own(model.parameters(), Wrapped)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        perdure.DiLoCo(job, model, inner, sync_every=100)
        backward(model, Place())
        with pytest.raises(perdure.UsageError, match=r"the state of Own\['state'\]\[0\]\['m'\] is a Wrapped"):
            inner.step()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1}, "is a set"),
        (torch.eye(2).to_sparse(), "is a sparse tensor"),
        (torch.empty(2, device="meta"), "is a meta tensor"),
        (torch.ones(2).as_subclass(Wrapped), "is a Wrapped, a tensor subclass"),
    ],
)
def test_refused_at_the_start(tmp_path: Path, value: Any, said: str) -> None:
    class Has:
        def state_dict(self) -> dict[str, Any]:
            return {"v": value}

        def load_state_dict(self, _: dict[str, Any]) -> None:
            pass

    model = nn.Linear(2, 1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        for make in (
            lambda: perdure.DiLoCo(job, model, torch.optim.SGD(model.parameters(), 0.1), state=[Has()]),
            lambda: perdure.ServerOptimizer(job, model, perdure.SGD(0.1), state=[Has()]),
        ):
            with pytest.raises(perdure.UsageError, match=rf"the state of Has\['v'\] {said}"):
                make()
        assert job.now == 0


def test_a_loader_is_not_asked_before_it_begins(tmp_path: Path) -> None:
    class Loader:
        def __iter__(self) -> Any:
            return iter(())

        def state_dict(self) -> dict[str, Any]:
            raise AssertionError

        load_state_dict = state_dict

    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        perdure.ServerOptimizer(job, nn.Linear(2, 1), perdure.SGD(0.1), state=[Loader()])  # type: ignore[list-item]


def test_fewer_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure import torch as of

    here = [torch.zeros(16, dtype=torch.uint8)] * 2
    taken: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(here))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: taken.append(len(states)))
    kept = of._random()
    of._set_random(kept)
    del here[1:]
    with pytest.warns(RuntimeWarning, match="cuda devices 1 to 1 .* has 1"):
        of._set_random(kept)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(RuntimeWarning, match="cuda devices 0 to 1 .* has none"):
        of._set_random(kept)
    assert taken == [2, 1]


@pytest.mark.parametrize("how", ["after", "before", "hook", "parallel after", "parallel before"])
def test_averages_that_change_after_the_step(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    model, place = nn.Linear(4, 1), Place()
    ema = torch.optim.swa_utils.AveragedModel(model)
    inner = torch.optim.SGD(model.parameters(), 0.01)
    if how == "hook":
        inner.register_step_post_hook(lambda *_: ema.update_parameters(model))
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        trainer: Any
        if how.startswith("parallel"):
            trainer = perdure.ServerOptimizer(job, model, perdure.SGD(0.01), state=[place, ema])
        else:
            trainer = perdure.DiLoCo(job, model, inner, sync_every=2, state=[place, ema])
        refused = pytest.raises(perdure.UsageError, match=r"^state=AveragedModel is changed after the step")
        with refused if how.endswith("after") else contextlib.nullcontext(), trainer:
            for _ in range(6):
                model.zero_grad()
                backward(model, place)
                if how.endswith("before"):
                    ema.update_parameters(model)
                trainer.step() if how.startswith("parallel") else inner.step()
                if how.endswith("after"):
                    ema.update_parameters(model)
        assert place.steps == (1 if how.endswith("after") else 6)
        assert not model.bias._post_accumulate_grad_hooks


def test_counters_next_to_an_average_may_change(tmp_path: Path) -> None:
    class Both(Place):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict() | {"ema": list(average)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)

    model, both = nn.Linear(4, 1), Both()
    average = [p.detach().clone() for p in model.parameters()]
    with (
        perdure.start(out=tmp_path / "run", args=SMALL) as job,
        perdure.ServerOptimizer(job, model, perdure.SGD(0.01), state=[both]) as trainer,
    ):
        for _ in range(3):
            backward(model, both)
            trainer.step()
            both.steps += 1
        assert job.now == 4


def test_a_model_is_no_state(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job:
        with pytest.raises(perdure.UsageError, match=r"^state=Sequential contains"):
            perdure.ServerOptimizer(job, model, perdure.SGD(0.01), state=[nn.Sequential(model)])
        assert job.now == 0


def test_data_that_are_collected_are_no_averages(tmp_path: Path) -> None:
    """Reinforcement learning collects data at the start of a step, so a replacement process collects them again."""

    class Replay:
        def __init__(self) -> None:
            self.of, self.next = torch.zeros(100, 4), 0

        def state_dict(self) -> dict[str, Any]:
            return {"of": self.of, "next": self.next}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.of, self.next = state["of"], state["next"]

    model, replay = nn.Linear(4, 1), Replay()
    inner = torch.optim.SGD(model.parameters(), 0.01)
    with perdure.start(out=tmp_path / "run", args=SMALL) as job, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with perdure.DiLoCo(job, model, inner, sync_every=2, state=[replay]):
            for step in range(4):
                replay.of[step], replay.next = step, step + 1
                model.zero_grad()
                model(replay.of).sum().backward()
                inner.step()


def test_scaler_goes_on(tmp_path: Path) -> None:
    """The optimizer's step saves the scaler's state although the scaler's update comes later."""

    def life(job: perdure.Job, number: int) -> Any:
        torch.manual_seed(0)
        model, place = nn.Linear(4, 1), Place()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        inner = torch.optim.SGD(model.parameters(), 0.01)
        with perdure.DiLoCo(job, model, inner, sync_every=4, state=[place, scaler]):
            while place.steps < 13:
                inner.zero_grad()
                x = torch.randn(8, 4, generator=place.of)
                scaler.scale(model(x).square().mean()).backward()
                if place.steps == 10:
                    model.bias.grad.fill_(float("inf"))
                place.steps += 1
                scaler.step(inner)
                scaler.update()
                if number < deaths and place.steps == (6, 11)[number]:
                    raise Death
        return hash_of(model), scaler.state_dict()

    found = []
    for deaths in (0, 2):
        found.append(lives(tmp_path / str(deaths), life, deaths, drafts=True))
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["epochs", "range", "clocks"])
def test_epochs(tmp_path: Path, how: str) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    batches = 0

    def life(job: perdure.Job, number: int) -> None:
        nonlocal batches
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        loader = loaders.StatefulDataLoader(torch.randn(8, 4), batch_size=2, shuffle=True)
        with perdure.ServerOptimizer(job, model, perdure.SGD(0.01), state=[loader]) as p:
            for _ in job.epochs(3) if how == "epochs" else range(3):
                if how == "clocks" and job.now > 12:
                    break
                for x in loader:
                    model(x).square().mean().backward()
                    p.step()
                    batches += 1
                    if number < 2 and batches == (6, 8)[number]:  # within an epoch, and at the end of one
                        raise Death

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        lives(tmp_path, life, 2)
    found = [of for of in said if "counts epochs" in str(of.message)]
    assert len(found) == (2 if how == "range" else 0)
    if how == "epochs":
        assert batches == 12


def test_epochs_end(job: perdure.Job) -> None:
    with pytest.raises(perdure.UsageError, match=r"epochs\(-1\): the number of epochs must be 0 or more"):
        job.epochs(-1)
    with pytest.raises(perdure.UsageError, match="epochs needs a Sampler"):
        next(job.epochs(3))
    perdure.ServerOptimizer(job, nn.Linear(4, 1), perdure.SGD(0.01))
    assert [(epoch, job._epochs.state_dict()["epoch"]) for epoch in job.epochs(3)] == [(0, 0), (1, 1), (2, 2)]
    assert list(job.epochs(3)) == []
    job._epochs.load_state_dict({"epoch": 1})
    assert list(job.epochs(3)) == [1, 2]
