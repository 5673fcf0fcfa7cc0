"""Studies: searches of a space by Optuna's samplers, in a storage that processes and machines can share.

    study = Study(space, ("decode", "luts"), storage="postgresql+psycopg://host/base")
    study.run(200)          works here, and on other machines with the same storage and name
    study.front()           the points that no other point beats, evaluated exactly

The first point of a study is the choice of the compiler, so no search ends with a worse result. A point is
pruned before its kernels are bound in two cases: if its engine has more multipliers than the budget, and if
the time of reading its weights shows that it beats no known point in any objective. If a worker dies, its
trial is repeated.
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
Costs = tuple[float, ...]  # one for each objective; less is better
FRONT, TRIED = 8, 24  # most points of an exact front, and most points that are evaluated for it


class Study:
    """A study. objectives: names in `evaluation.OBJECTIVES`. storage: URL of a database in the form of
    SQLAlchemy, a file for Optuna's journal, or None for a study that ends with the process. name: name of the
    study in the storage; by default the name of the model. sampler: "tpe", or "nsga2", which works in
    generations. seed: seed of the sampler; processes that share a study need different seeds, or None.

    Raises ValueError for unknown objectives, and if the storage has a different study of this name;
    StorageError if the storage cannot be reached or was written by another release of Optuna.
    """

    def __init__(
        self,
        space: Space,
        objectives: Sequence[str] = ("decode", "luts"),
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
            raise ValueError(f"objectives are {', '.join(objectives)}; each may be named only once")
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler is {sampler!r}; {', '.join(SAMPLERS)} are allowed")
        self.space, self.objectives = space, tuple(objectives)
        self.exact: list[Evaluation] = []
        """What `front` evaluated exactly, if it keeps the budgets."""
        self._stored = partial(stored, storage)
        with self._stored():
            place = None if storage is None else opened(storage)
            self._study = optuna.create_study(
                storage=place,
                sampler=_sampler(sampler, seed),
                study_name=name or space.name,
                directions=[
                    "maximize" if OBJECTIVES[objective][1] else "minimize" for objective in objectives
                ],
                load_if_exists=True,
            )
            self._claim()

    @property
    def points(self) -> int:
        """The number of finished points of all processes."""
        with self._stored():
            return len(self._study.get_trials(deepcopy=False, states=DONE))

    @property
    def tried(self) -> list[dict[str, float]]:
        """The objectives of all points that keep the budgets, in the order in which they were tried."""
        with self._stored():
            trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [dict(zip(self.objectives, trial.values, strict=True)) for trial in trials if within(trial)]

    def report(self) -> StudyReport:
        """All finished points of all processes, for `Report.with_study`."""
        with self._stored():
            return study_report(self._study)

    def run(
        self, trials: int, tell: Callable[[str], None] | None = None, *, first: Point | None = None
    ) -> None:
        """Try points until the study has `trials` points, including the points of other processes. tell:
        called with the progress before each point. first: the first point of a new study, instead of its
        default first points.

        Raises StorageError as above, and ValueError for a `first` with an unknown factor or an illegal value.
        """
        if trials < 1:
            raise ValueError(f"trials is {trials}; at least 1 is needed")
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
        """Feasible points that no other point beats in all objectives, the best in the first objective first.

        exact: evaluate the choice of the compiler and the points of the front exactly, and compare them
        again. The first evaluation does not see whether the SLRs can hold a design. If they cannot, the
        points that this design beat take its place, until FRONT points can be built or TRIED points were
        evaluated.
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
            number = min(layer, key=lambda candidate: costs[candidate][turn % len(self.objectives)])
            evaluation = self.space.evaluate(points[number], exact=True)
            if evaluation.feasible:
                built[number] = evaluation
            else:
                del costs[number]
        feasible = [point for point in (default, *built.values()) if point.feasible]
        self.exact = feasible
        best = _unbeaten({number: self._costs(point) for number, point in enumerate(feasible)})
        return sorted((feasible[number] for number in best), key=self._rank)

    def _firsts(self) -> Iterator[Point]:
        """The choice of the compiler, and for each numeric factor of the whole model this choice with the
        largest value of the factor."""
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
        return tuple(evaluation.value(objective) for objective in self.objectives)

    def _prune(self, trial: optuna.Trial, why: str) -> None:
        trial.set_user_attr("why", why[:500])
        trial.set_constraint("built", 1.0)
        raise optuna.TrialPruned

    def _best(self) -> dict[str, float]:
        """For each objective, the best value of the points that keep all budgets."""
        values = [trial.values for trial in self._study.best_trials]
        return {
            name: (max if OBJECTIVES[name][1] else min)(column)
            for name, column in zip(self.objectives, zip(*values, strict=True), strict=False)
        }

    def _choice(self, point: Point) -> dict[str, Value]:
        """The factors of a point that have an effect."""
        return {f.name: point[f.name] for f in self.space.factors if self.space.applies(f, point)}

    def _point(self, choice: Point) -> dict[str, Value]:
        return {factor.name: choice.get(factor.name, factor.values[0]) for factor in self.space.factors}

    def _costs(self, evaluation: Evaluation) -> Costs:
        return self._signed([evaluation.value(objective) for objective in self.objectives])

    def _signed(self, values: Sequence[float]) -> Costs:
        """The values of the objectives as costs."""
        return tuple(
            -value if OBJECTIVES[objective][1] else value
            for objective, value in zip(self.objectives, values, strict=True)
        )

    def _rank(self, evaluation: Evaluation) -> tuple[bool, Costs]:
        return not evaluation.feasible, self._costs(evaluation)

    def _claim(self) -> None:
        """Mark a new study as one of this space. Raises ValueError for a study of another space."""
        own = {"space": self.space.digest, "objectives": list(self.objectives)}
        others = {"space": "models, budgets or factors", "objectives": "objectives"}
        for key, value in own.items():
            known = self._study.user_attrs.get(key)
            if known is None:
                self._study.set_user_attr(key, value)
            elif known != value:
                raise ValueError(
                    f"the storage has a study {self._study.study_name!r} with other {others[key]}: give this "
                    "study another name, or use the model, budgets and objectives of the stored study"
                )


def _unbeaten(costs: Mapping[int, Costs]) -> list[int]:
    """The numbers whose costs no other costs beat; the first one of equal costs."""
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
