"""Stored studies: open Optuna's storages, and read their trials as values of a report."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamgen.api.search.evaluation import OBJECTIVES, UNITS
from streamgen.base.errors import StorageError
from streamgen.base.extras import needed
from streamgen.observe.study import StudyReport, TrialReport

with needed("a search"):
    import optuna
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
    from sqlalchemy.pool import NullPool


HEARTBEAT, GRACE = 5, 20  # seconds between heartbeats, and seconds after which a worker counts as dead
RETRIES = 3  # retries of a trial whose worker died
DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def opened(place: str) -> optuna.storages.BaseStorage:
    """Open the storage at the URL of a database or in a file for Optuna's journal. A missing storage is
    created."""
    if "://" not in place:
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(place))
    return optuna.storages.RDBStorage(
        place,
        engine_kwargs={"poolclass": NullPool},  # connections are closed after use
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
        heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
    )


def read_study(storage: str, name: str | None = None) -> StudyReport:
    """Read the trials of a study in a storage, which is not changed. name: name of the study; by default the
    only study of the storage.

    Raises ValueError if the storage does not have the study, or if it has several studies and no name is
    given; StorageError if the storage is missing or cannot be reached.
    """
    with stored(storage):
        _require_file(storage)
        names = optuna.get_all_study_names(place := opened(storage))
        has = f"the storage {_shown(storage)} has {', '.join(names) or 'no study'}"
        if name is None and len(names) != 1:
            raise ValueError(f"{has}; give the name of a study")
        if name is not None and name not in names:
            raise ValueError(f"{has}; it has no study {name!r}")
        return study_report(optuna.load_study(study_name=name or names[0], storage=place))


def study_report(study: optuna.Study) -> StudyReport:
    """The trials of a study. Raises ValueError for a study that `streamgen explore` did not create."""
    objectives = tuple(study.user_attrs.get("objectives", ()))
    if not objectives or not set(objectives) <= OBJECTIVES.keys():
        raise ValueError(f"study {study.study_name!r} was not created by `streamgen explore`")
    trials = study.get_trials(deepcopy=False, states=DONE)
    best = {trial.number for trial in study.best_trials} if trials else set()
    return StudyReport(
        name=study.study_name,
        objectives=objectives,
        units=tuple(UNITS[objective] for objective in objectives),
        maximised=tuple(OBJECTIVES[objective][1] for objective in objectives),
        trials=tuple(_trial(trial, trial.number in best) for trial in trials),
    )


def within(trial: FrozenTrial) -> bool:
    """Whether an evaluated trial keeps all budgets."""
    return all(share <= 0 for share in trial.constraints.values())


def _trial(trial: FrozenTrial, front: bool) -> TrialReport:
    pruned = trial.state is TrialState.PRUNED
    return TrialReport(
        number=trial.number,
        choice={name: str(value) for name, value in trial.params.items() if value is not None},
        values=() if pruned else tuple(trial.values),
        state="pruned" if pruned else "kept" if within(trial) else "over",
        front=front,
        why=trial.user_attrs.get("why", ""),
    )


def _require_file(storage: str) -> None:
    """Raise StorageError for a missing file, which Optuna would create."""
    url = make_url(storage) if "://" in storage else None
    if url is not None and url.get_backend_name() != "sqlite":
        return
    file = storage if url is None else url.database
    if file and not Path(file).is_file():
        raise StorageError(f"the storage {_shown(storage)} cannot be used: there is no file {file}")


@contextmanager
def stored(storage: str | None) -> Iterator[None]:
    """Turn failures of a storage into one clear error, and hide Optuna's notices."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = "" if storage is None else _shown(storage)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except ArgumentError as error:
        raise ValueError(f"storage is {shown!r}; a URL of SQLAlchemy is needed: {error}") from error
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise StorageError(f"the storage {shown} cannot be used: {_first_line(error)}") from error
    except ImportError as error:
        raise StorageError(
            f"the storage {shown} needs {error.name or error}, which is not installed"
        ) from error
    except RuntimeError as error:
        if "version" not in str(error):
            raise
        raise StorageError(
            f"the storage {shown} was written by another release of Optuna: {_first_line(error)}"
        ) from error


def _shown(storage: str) -> str:
    """A storage without its password, for messages."""
    scheme, mark, rest = storage.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{mark}{user.partition(':')[0]}{at}{host}"


def _first_line(error: BaseException) -> Any:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
