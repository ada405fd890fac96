# syntax=docker/dockerfile:1
# What compose.yaml takes from a registry, made from the packages of Debian and PyPI: for `make containers`, on machines
# that reach no registry. Each takes the same command line, and answers the same health check, as the image it stands for.
# Grafana is in neither. Not for production.
#
#   docker build --file deploy/containers/stand-ins.Dockerfile --target redis --tag icedb-stand-in-redis:1 .

ARG BASE_IMAGE=debian:12-slim

FROM ${BASE_IMAGE} AS redis
# Debian's versions move with its security updates:
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
# hadolint ignore=DL3066
USER redis
WORKDIR /var/lib/redis
# As the image that it stands for: whoever reaches the container may talk to it.
ENTRYPOINT ["sh", "-c", "exec \"$@\" --protected-mode no", "--"]

FROM ${BASE_IMAGE} AS prometheus
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && install --directory --owner=nobody --group=nogroup /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]

FROM ${BASE_IMAGE} AS python
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && python3 -m venv /opt/stand-in
ENV PATH=/opt/stand-in/bin:$PATH PYTHONUNBUFFERED=1

# moto, answering one request at a time, so that its conditional writes are atomic; objects are in memory, and are gone
# when it stops.
FROM python AS s3
WORKDIR /src
COPY constraints.txt LICENSE ./
COPY libs/icedb_log/ libs/icedb_log/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    pip install --no-cache-dir --constraint constraints.txt './libs/icedb_log' 'moto[s3,server]' waitress
COPY deploy/local/src/icedb_local/dev_s3.py /opt/stand-in/dev_s3.py
USER 65534:65534
ENTRYPOINT ["python", "/opt/stand-in/dev_s3.py", "--host", "0.0.0.0", "--port", "8333"]
# A bucket of this name makes GET /healthz answer 200.
CMD ["--bucket", "healthz"]

FROM python AS aws-cli
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    pip install --no-cache-dir 'awscli>=1.40'
USER 65534:65534
