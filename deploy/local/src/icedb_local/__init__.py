"""The local stack: real servers and workers on one machine, the development S3 server, the demo."""
