"""The whole of deploy/compose.yaml in containers, under load: killed, restarted, upgraded (`make containers`)."""
