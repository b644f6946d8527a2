# The image of a trainer on GPUs: the same as Dockerfile's, on a CUDA base, with cupy and NCCL.
#
#   docker build -f deploy/docker/cuda.Dockerfile -t gradmesh:0.1.0-cuda .
#
# It was built here on a Debian in place of the CUDA base, and has never run on a GPU. Build arguments as in Dockerfile, and
#   CUDA_IMAGE   a Debian or Ubuntu with CUDA's libraries and Python 3.11 or newer as a package
#   CUDA_EXTRA   cuda12 or cuda13, matching the base
ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:12.9.1-runtime-ubuntu24.04

# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/build
COPY deploy/docker/build-requirements.txt /build/
RUN /opt/build/bin/python -m pip install --require-hashes -r /build/build-requirements.txt
COPY . /build/
RUN /opt/build/bin/python -m pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels /build

# hadolint ignore=DL3006
FROM ${CUDA_IMAGE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG CUDA_EXTRA=cuda12
ARG EXTRAS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
# The base determines the versions of apt packages.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/gradmesh
COPY deploy/docker/ /build/
COPY --from=wheel /wheels /wheels
WORKDIR /build
# pip takes only files whose hashes are in the lists.
RUN set -- -r requirements.txt -r "extras/$CUDA_EXTRA.txt" && IFS=, \
    && for extra in ${EXTRAS}; do set -- "$@" -r "extras/$extra.txt"; done \
    && /opt/gradmesh/bin/python -m pip install --require-hashes "$@" \
    && /opt/gradmesh/bin/python -m pip install --no-deps --no-index /wheels/*.whl \
    && /opt/gradmesh/bin/python -m pip uninstall -y pip
RUN find /opt/gradmesh/lib -type d -name tests -prune -exec rm -rf {} + \
    && find /opt/gradmesh -exec touch -h -d 2020-01-01T00:00:00Z {} + \
    && /opt/gradmesh/bin/python -m compileall -q -j 0 /opt/gradmesh/lib

# hadolint ignore=DL3006
FROM ${CUDA_IMAGE} AS runtime
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 gradmesh \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/gradmesh --shell /usr/sbin/nologin gradmesh \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/gradmesh /var/lib/gradmesh/output \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/gradmesh/state /var/lib/gradmesh/token \
    && install -d -o 10001 -g 10001 /var/cache/gradmesh
COPY --from=build /opt/gradmesh /opt/gradmesh
COPY deploy/docker/healthcheck.py /opt/gradmesh/healthcheck.py
# cupy compiles its kernels on first use, and caches them.
ENV PATH=/opt/gradmesh/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/gradmesh \
    CUPY_CACHE_DIR=/var/cache/gradmesh/cupy
USER 10001:10001
WORKDIR /var/lib/gradmesh
RUN python -c "from gradmesh.engine.kernels.warm import warm_up; warm_up()"
EXPOSE 7070 7071 7072 9090
HEALTHCHECK --interval=3s --timeout=3s --start-period=60s --retries=3 CMD ["python", "-IS", "/opt/gradmesh/healthcheck.py"]
# Last, so that a new revision rebuilds no layer.
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gradmesh" \
      org.opencontainers.image.description="Hybrid-parallel training of embedding-heavy models: trainer on GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["gradmesh"]
CMD ["--help"]
