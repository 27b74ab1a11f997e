# An image with Verbena and the programs that show it at work. docs/ci.md says how to use it.
#
#   docker build -t verbena .                                       builds the packages from this source
#   docker build -t verbena --build-context packages=build/deb .    takes those that `make deb` has written
#
# podman build and buildah build read this file too.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends make
COPY . /verbena
RUN make -C /verbena deb

FROM scratch AS packages
COPY --from=build /verbena/build/deb/*.deb /

FROM ${BASE}
# What else is in the image: ibv_devinfo and the pingpongs, ib_write_bw and its siblings, rping.
ARG WITH="ibverbs-utils perftest rdmacm-utils"
RUN --mount=type=bind,from=packages,target=/packages \
    apt-get update && \
    apt-get install -y --no-install-recommends /packages/verbena_*.deb /packages/libverbena1_*.deb ${WITH} && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log
