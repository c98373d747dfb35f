# A small object store that speaks S3, with a folder behind it.
FROM scratch
COPY versitygw /versitygw
USER 65534:65534
ENTRYPOINT ["/versitygw"]
