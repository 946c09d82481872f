"""CCP's algorithm: what ends a projection, what the next one starts from, and the same run after an interruption."""

import functools

import pytest
import torch
import torch.nn.functional as F
from tiny import TINY, resumed

from dmlrepro.losses import chance_constrained as losses
from dmlrepro.losses.baselines import proxies_of
from experiments.training import inference, loop
from experiments.training.algorithms import chance_constrained as ccp

OPTIONS = {"proxies_per_class": 2, "pool_size": 3, "problem_patience": 2}
CCP = TINY.replace(
    loss="chance_constrained.ProxyContrastiveLoss",
    algorithm="chance_constrained",
    algorithm_options=OPTIONS,
    eval_every=1,
)
# the first problem is spent at 0.3, two evaluations below 0.5; the second four later, two below its own 0.4
SCORES = (0.1, 0.5, 0.4, 0.3, 0.2, 0.4, 0.3, 0.2, 0.9)


def with_options(spec=CCP, **changes):
    return spec.replace(algorithm_options={**spec.algorithm_options, **changes})


@pytest.fixture
def scored(monkeypatch):
    def evaluate(task, networks, step, **_):
        return [{"step": step, "metric": "P@1", "value": SCORES[step - 1]}], {"": torch.zeros(1, 8)}

    monkeypatch.setattr(inference, "evaluate", evaluate)


@pytest.fixture
def seen(monkeypatch):
    """Every pool (after which problem, at which weights, its points), and every start of the proxies."""
    pools, starts, algorithms = [], [], []
    pool, start, build = ccp.Algorithm._pool, ccp.Algorithm._start_proxies, ccp.Algorithm.__init__

    def spy_pool(self, drawn):
        weights = {name: value.clone() for name, value in self.network.state_dict().items()}
        points = pool(self, drawn)
        assert all(torch.equal(value, weights[name]) for name, value in self.network.state_dict().items())
        pools.append((self.problem, weights, points))
        return points

    def spy_start(self, points):
        before = proxies_of(self.loss).detach().clone()
        start(self, points)
        starts.append((before, proxies_of(self.loss).detach().clone()))

    @functools.wraps(build)
    def spy_build(self, *args, **options):
        algorithms.append(self)
        build(self, *args, **options)

    monkeypatch.setattr(ccp.Algorithm, "_pool", spy_pool)
    monkeypatch.setattr(ccp.Algorithm, "_start_proxies", spy_start)
    monkeypatch.setattr(ccp.Algorithm, "__init__", spy_build)
    return {"pools": pools, "starts": starts, "algorithms": algorithms}


def assert_same(actual: dict, expected: dict):
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_the_first_proxies_are_random_samples_of_their_class(seen):
    loop.train(CCP.replace(steps=1))
    (problem, _, pool), algorithm = seen["pools"][0], seen["algorithms"][0]
    assert problem == 0 and pool.shape == (algorithm.task.num_classes, 2, 8)
    assert torch.equal(seen["starts"][0][1], pool)
    start = inference.build_network(CCP, algorithm.task.manifest)
    inference.calibrate_batchnorm(algorithm.task, start)
    samples = losses.clip_to_unit_ball(inference.embed(start, algorithm.task.test_batches(algorithm.task.train)))
    labels = torch.from_numpy(algorithm.task.train_labels)
    for own, proxies in enumerate(pool):
        assert torch.cdist(proxies, samples[labels == own]).amin(1).max() < 1e-5
    loop.train(CCP.replace(steps=1, seed=1))
    assert not torch.equal(seen["algorithms"][1].chosen, seen["algorithms"][0].chosen)


@pytest.mark.parametrize("reset", [False, True])
def test_a_spent_problem_leaves_its_best_solution_to_the_next(scored, seen, reset):
    """theta*, rho* of step 2 are the anchors, embed the pool and are the centers; training goes on from step 4."""
    after = []
    next_problem = ccp.Algorithm.next_problem

    def spy(self, step):
        going_on = next_problem(self, step)
        after.append({name: value.clone() for name, value in self.network.state_dict().items()})
        return going_on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ccp.Algorithm, "next_problem", spy)
        loop.train(with_options(reset=reset, projections=2).replace(steps=40))
    best, last = (loop.train(CCP.replace(steps=steps, algorithm_options=OPTIONS)).states for steps in (2, 4))
    problem, weights, pool = seen["pools"][1]
    assert problem == 1
    assert_same(weights, best["network"])
    assert_same(seen["algorithms"][0].anchors, best["network"])
    assert_same(after[0], (best if reset else last)["network"])
    converged = losses.clip_to_unit_ball(best["loss"]["proxies"])
    picked = losses.greedy_k_center(pool, converged, 2)
    torch.testing.assert_close(seen["starts"][1][1], pool.gather(1, picked[..., None].expand(-1, -1, 8)))
    assert seen["algorithms"][0].solved[0] == [2, 4]


def test_problems_follow_one_another_until_their_number_or_the_run_is_spent(scored):
    spec = CCP.replace(steps=40)
    assert len(loop.train(with_options(spec, projections=1)).losses) == 4
    two = loop.train(with_options(spec, projections=2))
    assert len(two.losses) == 8
    assert len(loop.train(spec.replace(patience=5)).losses) == 7  # counted across problems
    assert len(loop.train(spec.replace(patience=1)).losses) == 3  # the first problem was not spent yet
    alone = loop.train(with_options(CCP.replace(steps=6), problem_patience=None))
    assert alone.terms == {} and len(alone.losses) == 6  # one problem, and no penalty in it
    assert torch.equal(alone.losses[:4], two.losses[:4])
    assert two.terms["projection"][:4].count_nonzero() == 0 and two.terms["projection"][4:].all()
    assert problems_of(two) == [(2, 4)]


def problems_of(outcome):
    """(step of theta*, step after which it ended) of the problems that another one followed."""
    return [tuple(row) for row in outcome.states["solved"]["_extra_state"].tolist()]


def test_a_problem_ends_after_so_many_steps_or_by_its_scores(scored):
    """Without an evaluation theta* are the last weights; patience, if it is there, may end a problem sooner."""
    blind = with_options(CCP.replace(steps=8, eval_every=None), problem_patience=None, problem_steps=3)
    assert problems_of(loop.train(blind)) == [(3, 3), (6, 6)]
    looking = with_options(CCP.replace(steps=8), problem_patience=None, problem_steps=3)
    assert problems_of(loop.train(looking)) == [(2, 3), (6, 6)]  # scored best at 2, and at 6 of 4 to 6
    assert problems_of(loop.train(with_options(CCP.replace(steps=8), problem_steps=3))) == [(2, 3), (6, 6)]
    assert problems_of(loop.train(with_options(CCP.replace(steps=8), problem_steps=5))) == [(2, 4)]
    with pytest.raises(ValueError, match="problem_steps must be greater than 0, got 0"):
        with_options(problem_steps=0)


def test_a_run_may_end_before_its_first_evaluation():
    """Its only problem is over after three steps: the last weights are the best."""
    spec = with_options(CCP.replace(steps=8, eval_every=5, restore_best=True, fold=0), problem_steps=3, projections=1)
    rows = loop.train(spec).rows
    assert {(row["selection"], row["step"]) for row in rows} == {("last", 3), ("val_best", 3)}


def test_the_terms_are_the_penalty_and_the_loss_within_the_batch(scored, seen):
    outcome = loop.train(with_options(CCP.replace(steps=6), batch_weight=0.1, projection=0.7))
    assert set(outcome.terms) == {"loss", "batch", "projection"}
    algorithm = seen["algorithms"][0]
    images, labels = next(algorithm.task.train_batches(0, 1, torch.device("cpu")))
    terms = algorithm.objective(images, labels)
    embeddings = algorithm.network(images)
    proxies = algorithm.loss.proxies
    classes = torch.arange(len(proxies)).repeat_interleave(2)
    loss = losses.ProxyContrastiveLoss()
    torch.testing.assert_close(terms["loss"], loss(embeddings, labels, proxies.flatten(0, 1), classes))
    torch.testing.assert_close(terms["batch"], 0.1 * loss(embeddings, labels))
    away = [p - algorithm.anchors[name] for name, p in algorithm.network.named_parameters()]
    torch.testing.assert_close(terms["projection"], 0.35 * sum(x.square().sum() for x in away))


def test_the_best_weights_of_all_problems_are_left_behind_and_the_history_stays(scored):
    outcome = loop.train(CCP.replace(steps=8, restore_best=True))
    expected = loop.train(CCP.replace(steps=2)).states
    assert_same(outcome.states["network"], expected["network"])
    assert_same(outcome.states["loss"], expected["loss"])
    assert outcome.states["solved"]["_extra_state"][:, 0].tolist() == [2.0]


PFML = "potential_field.PotentialFieldLoss"
OTHERS = {
    "proxy anchor": ("baselines.proxy_anchor", {}),
    "soft triple": ("baselines.soft_triple", {"centers_per_class": 3}),
    "pfml": (PFML, {"proxies_per_class": 2}),
    "el-nivmf": ("nivmf.ProbabilisticProxyLoss", {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_proxy_loss_of_the_package_is_projected(name, scored, seen):
    loss, options = OTHERS[name]
    algorithm_options = {"pool_size": 3, "problem_patience": 2}
    loop.train(CCP.replace(loss=loss, loss_options=options, algorithm_options=algorithm_options, steps=5))
    for (before, after), (_, _, pool) in zip(seen["starts"], seen["pools"], strict=True):
        torch.testing.assert_close(after.norm(dim=2), before.norm(dim=2))  # the norm has its own meaning in each loss
        directions = F.normalize(after, dim=2)
        assert torch.cdist(directions, pool).amin(2).max() < 1e-3  # each is a sample of its class
        assert torch.cdist(F.normalize(before, dim=2), pool).amin(2).min() > 1e-3
    assert len(seen["starts"]) == 2


def test_classes_smaller_than_the_pool_and_the_proxies_are_repeated(scored, seen):
    spec = with_options(CCP.replace(images_per_class=2, steps=5), proxies_per_class=4, pool_size=5)
    loop.train(spec)
    for _, _, pool in seen["pools"]:
        alike = torch.cdist(pool, pool, compute_mode="donot_use_mm_for_euclid_dist") < 1e-5
        assert not alike.all()
        # without crops a repeated image is the same, but for the rounding of its row in a batch
        assert all(len(groups.unique(dim=0)) <= 2 for groups in alike)
    drawn = ccp.samples_of_each_class(torch.tensor([0, 1, 1, 0, 1, 2]), 4, torch.Generator().manual_seed(0))
    assert [sorted(set(row)) for row in drawn.tolist()] == [[0, 3], [1, 2, 4], [5]]
    assert [max(row.count(i) for i in row) for row in drawn.tolist()] == [2, 2, 4]


def test_a_pool_is_augmented_as_training_is_and_embedded_in_evaluation_mode(scored, seen):
    spec = with_options(CCP.replace(image_size=24, images_per_class=2, steps=5), pool_size=4)
    loop.train(spec)
    _, _, pool = seen["pools"][1]  # `seen` has checked that the statistics of BatchNorm stayed
    assert all(len(points.unique(dim=0)) == 4 for points in pool[:20])  # two images, four crops
    assert seen["algorithms"][0].network.training


def test_the_samples_that_proxies_start_at_are_clipped(scored, seen, monkeypatch):
    embed = inference.embed
    monkeypatch.setattr(inference, "embed", lambda *args: 50 * embed(*args))  # the released code's are long too
    loop.train(with_options(CCP.replace(steps=5)))
    assert len(seen["starts"]) == 2
    for (_, _, drawn), (_, start) in zip((seen["pools"][0], seen["pools"][-1]), seen["starts"]):
        assert torch.isin(start, drawn).all()  # each is a sample of the pool
        assert (drawn.norm(dim=-1) < 1 + 1e-6).all()


def test_samples_can_stand_in_for_proxies(scored, seen):
    loop.train(with_options(CCP.replace(steps=6), samples=True))
    algorithm = seen["algorithms"][0]
    labels = torch.from_numpy(algorithm.task.train_labels)
    assert torch.equal(labels[algorithm.chosen], torch.arange(algorithm.task.num_classes)[:, None].expand(-1, 2))
    images, classes = next(algorithm.task.train_batches(0, 1, torch.device("cpu")))
    chosen = torch.cat(list(algorithm.task.test_batches(algorithm.task.train[algorithm.chosen.flatten()])))
    embeddings, proxies = algorithm.network(torch.cat([images, chosen])).split([len(images), len(chosen)])
    expected = losses.ProxyContrastiveLoss()(embeddings, classes, proxies, labels[algorithm.chosen.flatten()])
    terms = algorithm.objective(images, classes)
    torch.testing.assert_close(terms["loss"], expected)
    assert [pool.shape[1] for _, _, pool in seen["pools"]] == [2, 2, 3]  # at first, then as centers, then the pool


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"pool_size": 1}, "pool_size must be at least proxies_per_class = 2, got 1"),
        ({}, {"projection": -1.0}, "projection must be greater than or equal to 0"),
        ({}, {"reset": 1}, "reset must be a valid boolean"),
        ({"eval_every": None}, {}, "give eval_every or eval_every_epochs"),
        ({"fold": 0, "folds": 200}, {}, "leaves one class for validation"),
        ({"loss": "baselines.contrastive"}, {"proxies_per_class": None}, "baselines.contrastive has no proxies"),
        ({"loss": "baselines.proxy_anchor"}, {}, "are for losses that are given proxies"),
        ({"loss": PFML}, {"proxies_per_class": None}, "pool_size must be at least the 15 proxies of a class, got 3"),
    ],
)
def test_what_makes_no_sense_is_named(changes, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        loop.train(with_options(CCP.replace(**changes), **options))


LONG = CCP.replace(steps=24, restore_best=True, fold=0, lr=0.05, monitor="MAP@R")
INTERRUPTED = {
    "within a problem": (loop, "train_step", lambda state, *_: state.algorithm.problem == 1 and state.step % 2),
    "as it ends": (ccp.Algorithm, "_pool", lambda algorithm, _: algorithm.problem == 2),
}


@pytest.mark.parametrize("where", INTERRUPTED)
def test_a_run_interrupted_in_its_second_problem_resumes_to_the_same_bytes(where, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    module, name, now = INTERRUPTED[where]
    original = getattr(module, name)

    def dies(*args):
        if now(*args):
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, name, dies)
        loop.train(LONG, checkpoint=tmp_path / "run.pt")
    again, whole = loop.train(LONG, checkpoint=tmp_path / "run.pt"), loop.train(LONG)
    assert len(whole.states["solved"]["_extra_state"]) >= 2  # it reaches a third problem
    assert again.rows == whole.rows and torch.equal(again.losses, whole.losses)
    for actual, expected in zip((again.terms, *again.states.values()), (whole.terms, *whole.states.values())):
        assert_same(actual, expected)


def test_an_interruption_does_not_begin_the_steps_of_a_problem_anew(tmp_path):
    spec = with_options(CCP.replace(steps=20, eval_every=None), problem_patience=None, problem_steps=5)
    again = resumed(spec, tmp_path / "run.pt", step=13)
    assert problems_of(again) == [(5, 5), (10, 10), (15, 15)]
    assert torch.equal(again.losses, loop.train(spec).losses)
