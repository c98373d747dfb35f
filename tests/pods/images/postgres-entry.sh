# Makes a database where there is none, of POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD and PGDATA; then Postgres,
# with the arguments given.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    chmod 700 "$PGDATA"
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    initdb --pgdata "$PGDATA" --username "$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust \
        --auth-host=scram-sha-256 --encoding UTF8 --locale=C.UTF-8
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --pgdata "$PGDATA" --wait --options "-c listen_addresses=''" start
    [ "$POSTGRES_DB" = postgres ] || createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --pgdata "$PGDATA" --mode fast --wait stop
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' "$@"
