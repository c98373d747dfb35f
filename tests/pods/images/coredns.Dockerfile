FROM scratch
COPY coredns /coredns
USER 65534:65534
ENTRYPOINT ["/coredns"]
