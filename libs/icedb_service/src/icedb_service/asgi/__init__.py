"""HTTP doors of services: uvicorn inside an event loop that is not its own. Needs the extra ``http``."""
