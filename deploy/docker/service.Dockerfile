# One image for the four services and the command. Built by `make images`.
#
# BASE is any image with Python 3.11 or newer as `python3` and its venv module; by default the official slim one. Of it the
# image takes Python and the libraries that packages load (own_root.py): no shell, no package manager, no other program.
# What runs writes to /tmp only, and runs as any uid.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
# Secrets, where `make images` gives them: how to reach a package index from here.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONFIG_FILE=/run/secrets/pip.conf
# Symbols for debuggers are a fifth of all packages.
RUN command -v strip >/dev/null || (apt-get update -q && apt-get install -q -y --no-install-recommends binutils)
RUN python3 -m venv /opt/anabranch
COPY requirements-build.lock deploy/docker/service.lock /build/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem --mount=type=cache,target=/root/.cache/pip \
    /opt/anabranch/bin/pip install --require-hashes --only-binary :all: -r /build/requirements-build.lock \
    && /opt/anabranch/bin/pip install --require-hashes --only-binary :all: -r /build/service.lock
COPY pyproject.toml LICENSE /build/source/
COPY wheels /build/source/wheels
COPY libs /build/source/libs
COPY services /build/source/services
RUN /opt/anabranch/bin/pip install --no-deps --no-build-isolation /build/source/wheels/device /build/source/wheels/server \
    && /opt/anabranch/bin/pip uninstall --yes \
        hatchling packaging pathspec pluggy setuptools tomlkit trove-classifiers uv wheel pip \
    && cd /opt/anabranch/lib/python3*/site-packages \
    && rm -r pyarrow/include pyarrow/includes pyarrow/src pyarrow/tests pyarrow/*flight* \
        pyarrow/libarrow_python.so pyarrow/libarrow_python.so.*.* sqlalchemy/testing \
    && find . -name '*.so*' -type f -exec strip --strip-unneeded {} + \
    && /opt/anabranch/bin/python -m compileall -q -j 1 /opt/anabranch/lib \
    && mkdir /var/lib/anabranch
COPY deploy/docker/own_root.py /build/
RUN python3 /build/own_root.py /opt/anabranch /root-of-image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Anabranch" \
      org.opencontainers.image.description="Offline-first sync for Postgres: its services and its command" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /root-of-image /
COPY --from=build /opt/anabranch /opt/anabranch
# A new volume takes its owner from here.
COPY --from=build --chown=10001:10001 /var/lib/anabranch /var/lib/anabranch
ENV PATH=/opt/anabranch/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
EXPOSE 7400 9464
CMD ["anabranch", "--help"]
