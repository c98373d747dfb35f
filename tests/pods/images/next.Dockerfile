# The release after this one, as far as a cluster can tell: another image, another version, one more migration.
ARG VERSION
FROM anabranch/service:${VERSION}
USER 0
COPY next.py /tmp/next.py
RUN ["python", "/tmp/next.py"]
USER 10001:10001
