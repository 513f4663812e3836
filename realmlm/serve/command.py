"""What `realmlm serve` does."""

import gc
import socket
import sys
from collections.abc import Callable

from fastapi import FastAPI

from realmlm.engine import Engine
from realmlm.log import counted, say
from realmlm.parallel import cores
from realmlm.serve.around import Doors, is_loopback
from realmlm.serve.front import Front
from realmlm.serve.http import Running, create_app
from realmlm.serve.listen import Server, bind
from realmlm.serve.log import Log
from realmlm.serve.writers import MOST_WRITERS
from realmlm.settings import Serve


def serve(settings: Serve, load_engine: Callable[[], Engine]) -> None:
    """Listen at once, load the engine meanwhile, and answer until it is told to stop."""
    answer_at(bind(settings.host, settings.port), settings, load_engine)


def answer_at(
    listener: socket.socket,
    settings: Serve,
    load_engine: Callable[[], Engine],
    *,
    at_once: bool = True,
    ready: Callable[[], None] = lambda: None,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """The same at a socket; `ready` is called once the engine is loaded, `beat` every second. Of several
    processes at one port all but the first listen only then, not `at_once`, and leave it to the first to say
    where they are."""
    doors = Doors.of(settings)
    log = None
    if settings.log_file is not None:
        log = Log(settings.log_file, level=settings.log_level, questions=settings.log_questions)

    def load() -> FastAPI:
        engine = load_engine()
        if engine.model.device.type == "cuda":
            _compile_kernels(engine)
        if at_once and doors.token is None and not is_loopback(doors.host):
            can = "read and change the passages" if engine.editable else "read the passages"
            say(f"anyone who can reach {settings.host} can {can}; give a --token-file to prevent it")
        passages = counted(len(engine.corpus), "passage")
        app = create_app(
            engine,
            host=settings.host,
            token=doors.token,
            queue=settings.queue,
            batch=settings.batch,
            runs=settings.runs,
            writers=_writers(settings) if engine.model.device.type == "cuda" else 0,
            running=Running(
                patience_s=settings.patience,
                token_reads=doors.token_reads,
                hosts=doors.hosts,
                log=log,
                lost=lambda error: front.failed(error),  # it ends as it does when told to stop
            ),
        )
        gc.collect()
        # what is loaded stays: looking through it for garbage holds answers up for 0.2 s each time
        gc.freeze()
        if at_once:
            workers = f"; {settings.workers} workers" if settings.workers > 1 else ""
            say(f"http://{settings.host}:{settings.port}   ({passages}{workers}; Ctrl-C stops)")
        ready()
        return app

    sys.setswitchinterval(0.0005)  # else the thread that feeds a GPU waits 5 ms for each answer being sent
    loaded = None if at_once else load()
    front = Front(lambda: loaded or load(), doors=doors, log=log, at_once=at_once)
    Server(front, log=log, own_process=True, beat=beat).serve_at(listener)


def _writers(settings: Serve) -> int:
    """Processes beside the one that gives a GPU its work."""
    return max(0, min(MOST_WRITERS, cores() // settings.workers - 1))


def _compile_kernels(engine: Engine) -> None:
    """Ask so that all kernels are compiled, which otherwise the first to ask would wait for: those of search
    differ for one, few and many questions, and where their number is a multiple of 16."""
    for count in (1, 2, 16, 17, 64):
        engine.ask(["What is this?"] * count)
