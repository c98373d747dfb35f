# Debian's Postgres, started as the official image is: what the chart relies on of that.
FROM local/debian-python
RUN printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d \
    && groupadd --system --gid 999 postgres \
    && useradd --system --uid 999 --gid 999 --home-dir /var/lib/postgresql --shell /bin/sh postgres \
    && mkdir -p /etc/postgresql-common \
    && echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf \
    && apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
        -o Dpkg::Options::=--force-confold postgresql-17 \
    && rm -rf /var/lib/apt/lists/*
COPY postgres-entry.sh /usr/local/bin/postgres-entry.sh
ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/bin:/usr/bin:/bin \
    PGDATA=/var/lib/postgresql/data
STOPSIGNAL SIGINT
USER 999:999
ENTRYPOINT ["/bin/sh", "/usr/local/bin/postgres-entry.sh"]
