# Debian's nginx, which writes to /tmp only.
FROM local/debian-python
RUN printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d \
    && apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends nginx \
    && rm -rf /var/lib/apt/lists/*
USER 33:33
ENTRYPOINT ["/usr/sbin/nginx", "-g", "daemon off;"]
