"""What every service shares: settings, logs, metrics, health, the Celery app, its tasks and its locks.

Owns no data path: neither rows nor engines (Spark comes in through a factory that a service passes in). Import
what you need from the module that owns it.
"""
