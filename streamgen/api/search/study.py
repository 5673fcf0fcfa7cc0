"""A search: Optuna's samplers over a space, its storage between processes and machines.

    study = Study(space, ("tokens/s", "luts"), storage="postgresql+psycopg://host/base")
    study.run(200)          here, and anywhere else with the same storage and name
    study.front()           what no other point beats, exactly

The first point of a study is the compiler's own choice, so no search ends worse than that. A point is pruned
before its kernels are bound when its engine has more multipliers than the budget, or when the least that
memory takes says that it beats no known point in anything. The trial of a worker that has died is tried
again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import le
from typing import Literal

from streamgen.api.search.evaluation import OBJECTIVES, Evaluation
from streamgen.api.search.factors import Value
from streamgen.api.search.space import Point, Space
from streamgen.api.search.stored import DONE, opened, stored, study_report, within
from streamgen.base.extras import needed
from streamgen.observe.study import StudyReport

with needed("a search"):
    import optuna
    from optuna.trial import TrialState


Sampler = Literal["tpe", "nsga2"]
SAMPLERS: tuple[Sampler, ...] = ("tpe", "nsga2")
Costs = tuple[float, ...]  # by objective: the less, the better
FRONT, TRIED = 8, 24  # points of a front that are evaluated exactly, and at most those that cannot be built


class Study:
    """objectives: names in `evaluation.OBJECTIVES`. storage: URL of a database as SQLAlchemy writes them, a
    file for Optuna's journal, or None for a study that ends with the process. name: of the study in the
    storage; by default that of the model. sampler: "tpe", or "nsga2" in generations. seed: of the sampler;
    processes that share a study take different ones, or None.

    ValueError for unknown objectives, and for a name under which the storage has another study; StorageError
    for a storage that cannot be reached or that another release of Optuna has made.
    """

    def __init__(
        self,
        space: Space,
        objectives: Sequence[str] = ("tokens/s", "luts"),
        *,
        storage: str | None = None,
        name: str | None = None,
        sampler: Sampler = "tpe",
        seed: int | None = 0,
    ) -> None:
        for objective in objectives or ("",):
            if objective not in OBJECTIVES:
                raise ValueError(f"objective is {objective!r}; {', '.join(OBJECTIVES)} are allowed")
        if len(set(objectives)) < len(objectives):
            raise ValueError(f"objectives {', '.join(objectives)} name one twice")
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler is {sampler!r}; {', '.join(SAMPLERS)} are allowed")
        self.space, self.objectives = space, tuple(objectives)
        self._stored = partial(stored, storage)
        with self._stored():
            place = None if storage is None else opened(storage)
            self._study = optuna.create_study(
                storage=place,
                sampler=_sampler(sampler, seed),
                study_name=name or space.name,
                directions=["maximize" if OBJECTIVES[one][1] else "minimize" for one in objectives],
                load_if_exists=True,
            )
            self._claim()

    @property
    def points(self) -> int:
        """How many are done, this process's and others'."""
        with self._stored():
            return len(self._study.get_trials(deepcopy=False, states=DONE))

    @property
    def tried(self) -> list[dict[str, float]]:
        """The objectives of all points that keep their budgets, in the order in which they were tried."""
        with self._stored():
            trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [dict(zip(self.objectives, trial.values, strict=True)) for trial in trials if within(trial)]

    def report(self) -> StudyReport:
        """All points that are done, this process's and others', for `Report.with_study`."""
        with self._stored():
            return study_report(self._study)

    def run(
        self, trials: int, tell: Callable[[str], None] | None = None, *, first: Point | None = None
    ) -> None:
        """Until the study has so many points in all, of all who work on it. first: the point with which a new
        study begins, in the place of those with which it begins by itself. StorageError as above; ValueError
        for one that is none."""
        if trials < 1:
            raise ValueError(f"trials is {trials}; at least 1 is allowed")
        begin = self._firsts() if first is None else [{**self.space.default, **first}]
        self.space.config_of(first or {})
        with self._stored():
            if not self._study.get_trials(deepcopy=False):
                for point in begin:
                    self._study.enqueue_trial(self._choice(point), skip_if_exists=True)
        while (done := self.points) < trials:
            if tell is not None:
                tell(f"{done} of {trials} points")
            with self._stored():
                self._study.optimize(self._trial, n_trials=1)

    def front(self, *, exact: bool = True) -> list[Evaluation]:
        """Feasible points that no other one beats in all objectives, the best in the first objective first.

        exact: the compiler's own choice and others of the front are evaluated exactly, and compared again.
        Bounds do not see whether SLRs can hold a design: where one of them cannot, what it beat comes in its
        place, until FRONT can be built, or TRIED have been looked at.
        """
        with self._stored():
            trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        points = {n: self._point(trial.params) for n, trial in enumerate(trials) if within(trial)}
        costs = {number: self._signed(trials[number].values) for number in points}
        if not exact:
            unbeaten = [self.space.evaluate(points[number]) for number in _unbeaten(costs)]
            return sorted(unbeaten, key=self._rank)
        default = self.space.evaluate(self.space.default, exact=True)
        built: dict[int, Evaluation] = {}
        for turn in range(TRIED):
            layer = [number for number in _unbeaten(costs) if number not in built]
            if not layer or len(built) == FRONT:
                break
            number = min(layer, key=lambda one: costs[one][turn % len(self.objectives)])
            one = self.space.evaluate(points[number], exact=True)
            if one.feasible:
                built[number] = one
            else:
                del costs[number]
        able = [one for one in (default, *built.values()) if one.feasible]
        best = _unbeaten({number: self._costs(one) for number, one in enumerate(able)})
        return sorted((able[number] for number in best), key=self._rank)

    def _firsts(self) -> Iterator[Point]:
        """The compiler's own choice, and what most of one factor makes of it, factor by factor of the model
        as a whole."""
        yield (default := self.space.default)
        for factor in self.space.factors:
            numbers = [value for value in factor.values if isinstance(value, int)]
            if numbers and "." not in factor.name and self.space.applies(factor, default):
                yield {**default, factor.name: max(numbers)}

    def _trial(self, trial: optuna.Trial) -> tuple[float, ...]:
        choice: dict[str, Value] = {}
        for factor in self.space.factors:
            if self.space.applies(factor, choice):
                choice[factor.name] = trial.suggest_categorical(factor.name, factor.values)  # type: ignore[assignment]
        point = self._point(choice)
        if why := self.space.bound(point, self._best()):
            self._prune(trial, why)
        evaluation = self.space.evaluate(point)
        if evaluation.why:
            self._prune(trial, evaluation.why)
        for name, share in evaluation.over.items():
            trial.set_constraint(name, share)
        trial.set_constraint("built", -1.0)
        return tuple(evaluation.value(one) for one in self.objectives)

    def _prune(self, trial: optuna.Trial, why: str) -> None:
        trial.set_user_attr("why", why[:500])
        trial.set_constraint("built", 1.0)
        raise optuna.TrialPruned

    def _best(self) -> dict[str, float]:
        """The best known value of each objective, of points that keep all budgets."""
        values = [trial.values for trial in self._study.best_trials]
        return {
            name: (max if OBJECTIVES[name][1] else min)(column)
            for name, column in zip(self.objectives, zip(*values, strict=True), strict=False)
        }

    def _choice(self, point: Point) -> dict[str, Value]:
        """The factors of a point that mean something."""
        return {f.name: point[f.name] for f in self.space.factors if self.space.applies(f, point)}

    def _point(self, choice: Point) -> dict[str, Value]:
        return {factor.name: choice.get(factor.name, factor.values[0]) for factor in self.space.factors}

    def _costs(self, evaluation: Evaluation) -> Costs:
        return self._signed([evaluation.value(one) for one in self.objectives])

    def _signed(self, values: Sequence[float]) -> Costs:
        """Of values of the objectives."""
        return tuple(
            -value if OBJECTIVES[one][1] else value
            for one, value in zip(self.objectives, values, strict=True)
        )

    def _rank(self, evaluation: Evaluation) -> tuple[bool, Costs]:
        return not evaluation.feasible, self._costs(evaluation)

    def _claim(self) -> None:
        """The study is that of this space, or new. ValueError."""
        own = {"space": self.space.digest, "objectives": list(self.objectives)}
        for key, value in own.items():
            known = self._study.user_attrs.get(key)
            if known is None:
                self._study.set_user_attr(key, value)
            elif known != value:
                raise ValueError(
                    f"the storage has a study {self._study.study_name!r} of another {key}; give this one "
                    "a name of its own, or the model, budgets and objectives of that one"
                )


def _unbeaten(costs: Mapping[int, Costs]) -> list[int]:
    """Those that no other beats; of equal ones the first."""
    firsts = {own: number for number, own in reversed([*costs.items()])}
    return [
        number
        for own, number in firsts.items()
        if not any(all(map(le, other, own)) for other in firsts if other != own)
    ]


def _sampler(name: Sampler, seed: int | None) -> optuna.samplers.BaseSampler:
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(population_size=24, seed=seed)
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
