# syntax=docker/dockerfile:1
# The kvtap image: one binary, as uid 65532, on a base without shell or package manager.
#
#   docker build --tag kvtap:0.1.0 .
#
# Nothing is fetched but the two images and, from crates.io, what Cargo.lock pins by checksum. To pin the images as well,
# name them by digest: --build-arg RUST_IMAGE=rust@sha256:... --build-arg BASE_IMAGE=gcr.io/distroless/cc-debian12@sha256:...
# Both are Debian 12: the binary links to the C library of the first and runs on that of the second.
ARG RUST_IMAGE=rust:1.95-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# Paths inside the binary are the same wherever it is built.
ENV RUSTFLAGS="--remap-path-prefix=/usr/local/cargo=cargo --remap-path-prefix=/src=kvtap"
# .dockerignore lets through what the build reads and nothing else.
COPY . .
RUN cargo build --release --locked --bin kvtap

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="kvtap" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build --chmod=0555 /src/target/release/kvtap /usr/local/bin/kvtap
COPY LICENSE /usr/share/doc/kvtap/LICENSE
# `kubectl exec POD -c kvtap -- kvtap workers` finds it by name.
ENV PATH=/usr/local/bin
USER 65532:65532
EXPOSE 9400 9401
ENTRYPOINT ["/usr/local/bin/kvtap"]
CMD ["serve", "--config", "/etc/kvtap/kvtap.yaml"]
