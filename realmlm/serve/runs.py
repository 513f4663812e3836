"""The routes of the service that show training runs."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from realmlm.log import read_metrics
from realmlm.names import short_names


def run_routes(folders: Sequence[Path]) -> APIRouter:
    """The metrics of the runs in these folders."""
    routes = APIRouter()

    def watched() -> dict[str, Path]:
        """Name of each run -> its metrics; a folder may hold several runs."""
        files = [file for folder in folders for file in sorted(folder.glob("**/metrics.jsonl"))]
        places = (Path(os.path.abspath(file)).parent for file in files if file.is_file())
        runs = list(dict.fromkeys(places))
        return {name: run / "metrics.jsonl" for name, run in zip(short_names(runs), runs, strict=True)}

    @routes.get("/runs", summary="Training runs shown on the page")
    async def list_runs() -> list[str]:
        return sorted(await asyncio.to_thread(watched))

    @routes.get("/runs/{name:path}", summary="The metrics of a run, row by row")
    async def read_run(name: str) -> list[dict[str, Any]]:
        file = (await asyncio.to_thread(watched)).get(name)
        if file is None:
            raise HTTPException(404, f"there is no run '{name}'; GET /runs lists those that exist")
        return await asyncio.to_thread(read_metrics, file)

    return routes
