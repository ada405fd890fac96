"""The task that carries erasures on, from the deletion of rows to the proof that no object holds them."""

from typing import Any

from celery import Celery
from icedb_service.worker import WorkerContext

from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings


def register_erasure_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: MergerSettings, metrics: MergeMetrics
) -> None:
    """Define these tasks on the service's application."""
