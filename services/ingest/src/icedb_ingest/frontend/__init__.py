"""The front end of ingest: accepts batches over gRPC, HTTP, webhooks and Celery, each with one durable write (I1).

Owns no row: bodies are staged as they came, and the ingest worker decodes them. Imports no engine.
"""
