"""The task that changes rows on demand: rewrites and deletions."""

from typing import Any

from celery import Celery
from icedb_service.worker import WorkerContext

from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings


def register_change_tasks(
    app: Celery, context: WorkerContext[Any], *, settings: MergerSettings, metrics: MergeMetrics
) -> None:
    """Define these tasks on the service's application."""
