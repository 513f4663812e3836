"""Commands, trainers, refreshers and services killed (SIGKILL) at any of their file operations: what they were
to make is there in the end as if nothing had happened, and of what a service has acknowledged nothing is lost."""

import http.client
import json
import random
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from realmlm.corpus.store import Corpus
from realmlm.settings import JointOptim, Loop, Refresh
from realmlm.storage.artefacts import open_artefact, sha256_of
from tests.forked import CONTEXT
from tests.laboratory import copy_of, resume_finetune, spans
from tests.train import killers
from tests.train.killers import Death

LONGEST_S = 300
JSON = {"content-type": "application/json"}
STEPS = 12
_FIRST_EDIT = (
    40  # file operations within which a service has stored and acknowledged its first edit (24 to 30)
)


def lived(life: Callable[..., None], *arguments: Any) -> int:
    """Run a life in a process of its own; gives the exit code."""
    process = CONTEXT.Process(target=life, args=arguments)
    process.start()
    process.join(LONGEST_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return 1
    return int(process.exitcode)


class Kills:
    """Calls are cases."""

    def __init__(self, laboratory: Path, folder: Path) -> None:
        self._laboratory = laboratory
        self._folder = folder
        self._undisturbed: dict[
            str, tuple[str, int]
        ] = {}  # by command, what it makes and in how many operations
        self._kinds = {
            "corpus": self._command,
            "spans": self._command,
            "index": self._command,
            "finetune": self._command,
            "edit": self._edit,
            "trainer": self._training,
            "refresher": self._training,
            "both": self._training,
            "serve": self._serve,
        }

    def __call__(self, rng: random.Random) -> tuple[str, str | None]:
        name = rng.choice(sorted(self._kinds))
        return name, self._kinds[name](name, rng)

    def _fresh(self) -> Path:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return copy_of(self._laboratory, self._folder)

    # --- commands -------------------------------------------------------------------------------------------

    def _command(self, name: str, rng: random.Random) -> str | None:
        if name not in self._undisturbed:
            folder = self._fresh()
            if (code := self._live(name, folder, None)) != 0:
                return f"undisturbed: exit {code}"
            operations = len((self._folder / "log").read_text().splitlines())
            self._undisturbed[name] = (_made(name, folder), operations)
        made, operations = self._undisturbed[name]
        folder = self._fresh()
        deaths = [Death("", rng.randint(1, operations)) for _ in range(rng.randint(1, 3))]
        codes = [self._live(name, folder, death) for death in deaths]
        if not set(codes) <= {-9, 0, 2}:  # 2: what it makes stands there already
            return f"{deaths}: exit codes {codes}"
        last = self._live(name, folder, None)
        if last not in (0, 2) or _made(name, folder) != made:
            return f"{deaths}: exit codes {codes}, then {last}; it did not make the same"
        return None

    def _live(self, name: str, folder: Path, death: Death | None) -> int:
        arguments = _arguments(name, folder)
        return lived(killers.command, arguments, folder, death, self._folder / "log")

    def _edit(self, name: str, rng: random.Random) -> str | None:
        folder = self._fresh()
        before = len(Corpus.open(folder / "corpus"))
        death = Death("edits", rng.randint(1, 12))
        code = self._live(name, folder, death)
        between = len(Corpus.open(folder / "corpus"))
        last = self._live(name, folder, None)
        after = len(Corpus.open(folder / "corpus"))
        whole = between in (before, before + 1) and after == between + 1 and last == 0
        left = [path.name for path in (folder / "corpus" / "edits").glob(".*")]
        return (
            None
            if whole and not left
            else f"{death}: {before}, {between}, {after} passages, {code} {last} {left}"
        )

    # --- training -------------------------------------------------------------------------------------------

    def _training(self, name: str, rng: random.Random) -> str | None:
        folder = self._fresh()
        arguments = _run(folder)
        weights = arguments["out"] / "model" / "model.safetensors"
        if "training" not in self._undisturbed:
            if lived(killers.train, arguments, None, self._folder / "log") != 0:
                return "undisturbed: it failed"
            operations = len((self._folder / "log").read_text().splitlines())
            self._undisturbed["training"] = (sha256_of(weights), operations)
            shutil.rmtree(arguments["out"])
        truth, operations = self._undisturbed["training"]
        plan = self._folder / "plan"
        doomed = [["", rng.randint(1, 30)] for _ in range(rng.randint(1, 3))] if name != "trainer" else []
        plan.write_text(json.dumps(doomed))
        deaths = [Death("", rng.randint(1, operations)) for _ in range(rng.randint(1, 3))]
        deaths = [] if name == "refresher" else deaths
        codes = [lived(killers.train_with_both_doomed, arguments, death, plan) for death in deaths]
        codes.append(lived(killers.train_with_both_doomed, arguments, None, plan))
        if codes[-1] != 0 or not set(codes) <= {0, -9} or sha256_of(weights) != truth:
            return f"{deaths}, refreshers {doomed}: exit codes {codes}; other weights, or none"
        left = [str(path) for path in arguments["out"].rglob(".*.tmp")]
        return f"left behind: {left}" if left else None

    # --- serving --------------------------------------------------------------------------------------------

    def _serve(self, name: str, rng: random.Random) -> str | None:
        """Every write that was acknowledged is there once; one that was not, at most once."""
        folder = self._fresh()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = [
            "serve",
            "--model",
            f"{folder}/model",
            "--corpus",
            f"{folder}/corpus",
            "--port",
            str(port),
        ]
        arguments += ["--device", "cpu"]
        death = Death("/corpus/edits", rng.randint(1, 150))
        process = CONTEXT.Process(
            target=killers.command, args=(arguments, folder, death, self._folder / "log")
        )
        process.start()
        acknowledged: list[str] = []
        sent: list[str] = []
        ready = time.monotonic() + 60
        while process.is_alive() and len(sent) < 200 and time.monotonic() < ready + 60:
            text = f"The people of Town{len(sent)}q live by trade{len(sent)}q."
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                sent += [text]
                connection.request("POST", "/passages", json.dumps({"title": "New", "text": text}), JSON)
                status = connection.getresponse().status
                acknowledged += [text] if status < 300 else []
                if status >= 300:
                    sent.pop()
                    time.sleep(0.1)
            except (OSError, http.client.HTTPException):
                if not acknowledged and time.monotonic() < ready:
                    sent.pop()
                    time.sleep(0.05)
        process.kill()
        process.join()
        corpus = Corpus.open(folder / "corpus")
        texts = [corpus.text(number) for number in corpus.ids.tolist()]
        lost = [text for text in acknowledged if texts.count(text) != 1]
        twice = [text for text in sent if texts.count(text) > 1]
        if not acknowledged and death.number > _FIRST_EDIT:
            return f"{death}: nothing was acknowledged"
        return f"{death}: lost {lost[:3]}, twice {twice[:3]}" if lost or twice else None


def _arguments(name: str, folder: Path) -> list[str]:
    match name:
        case "corpus":
            return [
                "corpus",
                f"{folder}/notes",
                "--out",
                f"{folder}/made",
                "--train-tokenizer",
                "200",
                "--workers",
                "1",
            ]
        case "spans":
            return spans(folder)
        case "index":
            corpus = ["--model", f"{folder}/model", "--corpus", f"{folder}/corpus", "--out", f"{folder}/made"]
            return ["index", *corpus, "--device", "cpu"]
        case "edit":
            return ["edit", f"{folder}/corpus", "--add", f"{folder}/notes/Orvane.txt"]
        case _:
            return resume_finetune(folder)


def _made(name: str, folder: Path) -> str:
    """What identifies what a command made."""
    places = {"corpus": "made", "spans": "corpus/spans", "index": "made", "finetune": "finetune/model"}
    kind = "model" if name == "finetune" else name
    return open_artefact(folder / places[name], kind=kind).fingerprint


def _run(folder: Path) -> dict[str, Any]:
    """A deterministic run with its refresher as a process of its own."""
    return {
        "model": folder / "model",
        "corpus": folder / "corpus",
        "out": folder / "run",
        "k": 3,
        "optim": JointOptim(steps=STEPS, batch=4, lr=1e-3, retriever_lr=1e-3),
        "refresh": Refresh(every_steps=4, swap_after=3, shard=4),
        "loop": Loop(log_every=1, checkpoint_every=3, deterministic=True, threads=1, device="cpu"),
    }
