"""Refreshers that join a running training: `realmlm refresher RUN`, on any machine that sees the folder, and
those that the training itself starts on a Ray cluster."""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

from realmlm.cluster import joined
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.errors import ArtefactMissing, BadInput, Mismatch, MissingExtra, RealmError
from realmlm.index.refresh import join_refreshes
from realmlm.log import counted, say
from realmlm.model.snapshot import load_snapshot
from realmlm.parallel import die_with_parent, sheltered
from realmlm.settings import JoinRun
from realmlm.train.run import is_finished, read_pins, read_run

_POLL_S = 0.2


class _ToldToEnd(Exception):
    """Someone has sent SIGTERM."""


def join_run(settings: JoinRun) -> str:
    """Embed shards of the run's snapshots until the run ends, or until SIGTERM: a shard that is not finished
    is then left to the others. Gives what there is to say in the end."""
    run = settings.run
    trained_on = _corpus_of(run)
    if is_finished(run):
        return f"{run} is finished: nothing is left to embed"
    done = 0

    def tell(text: str) -> None:
        nonlocal done
        done += 1
        say(text)

    def over() -> bool:
        return is_finished(run) or not (run / "run.json").exists()

    try:
        with _ended_by_sigterm():
            device = pick_device(settings.device)
            corpus = _opened(run, trained_on, settings.corpus or trained_on)
            say(f"{run}: joined, on {device}; waiting for a snapshot of its document tower")
            join_refreshes(run, corpus, load_snapshot, str(device), over=over, tell=tell)
            ended = "is finished" if is_finished(run) else "is gone"
    except _ToldToEnd:
        ended = "goes on without this refresher, which was told to end"
    return f"{run} {ended}: {counted(done, 'shard')} embedded here"


def _corpus_of(run: Path) -> Path:
    """Where the run has its corpus, if it is one that refreshes the index."""
    if not (run / "run.json").exists():
        raise ArtefactMissing(f"no run in {run}; name the --out of a training that is running")
    record = read_run(run)
    config = record["config"]
    refresh = config.get("refresh")
    if not isinstance(refresh, dict) or not refresh.get("every_steps") or not config.get("corpus"):
        fixed = f"{run} ({record['stage']}) does not refresh an index"
        raise BadInput(f"{fixed}; join a pretrain, or a finetune with --refresh.every-steps")
    return Path(config["corpus"])


def _opened(run: Path, trained_on: Path, place: Path) -> Corpus:
    """The corpus as it was when the run began, which a run notes down soon after."""
    names = (str(trained_on), f"{trained_on}/manifest.json")
    while not all(name in (pins := read_pins(run)) for name in names):
        if not (run / "run.json").exists():
            raise ArtefactMissing(f"{run} is gone: its training has failed before it began")
        time.sleep(_POLL_S)
    edits, fingerprint = (pins[name] for name in names)
    corpus = Corpus.open(place, edits=edits)
    if corpus.fingerprint != fingerprint:
        raise Mismatch(f"{place} is not the corpus that {run} trains with; name that one: --corpus CORPUS")
    return corpus


# --- on a Ray cluster ---------------------------------------------------------------------------------------


class RayRefreshers:
    """Refreshers on a Ray cluster that help the run of this process until it is closed, each an actor which
    does what the command does. One that is killed is started again. A process of its own has them, so that
    Ray's threads and handlers of signals stay out of the trainer."""

    def __init__(self, run: Path, device: str) -> None:
        """`device` is of the kind that the run's own refresher uses."""
        if find_spec("ray") is None:  # not imported here
            raise MissingExtra("--refresh.engine ray needs 'ray': pip install 'realmlm[ray]'")
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=_help_from_cluster, args=(run, device), daemon=True)
        with sheltered():
            self._process.start()

    def close(self) -> None:
        """End them: Ray ends what a process had that is gone."""
        self._process.kill()
        self._process.join()


def _help_from_cluster(run: Path, device: str) -> None:
    die_with_parent()
    gpus = int(device == "cuda")
    try:
        with joined() as cluster:
            room = cluster.room(1, gpus)
            say(f"{counted(room, 'refresher')} on the Ray cluster will help")
            with closing(
                cluster.map(_joining, (run, device), range(room), cpus=1, gpus=gpus, tries=0)
            ) as ended:
                for said in ended:
                    say(f"a refresher on the Ray cluster: {said}")
    except RealmError as error:
        say(f"the run goes on without refreshers on a Ray cluster: {error}")


def _joining(run: Path, device: str) -> Callable[[int], str]:
    def join(_: int) -> str:
        try:
            return join_run(JoinRun(run=run, device=device))
        except RealmError as error:  # what one machine lacks, others may have
            return str(error)

    return join


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def end(*_: object) -> None:
        raise _ToldToEnd

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
