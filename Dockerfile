# The device side for amd64 and arm64: deco-run, deco-doctor and, with EXTRAS=device,fleet, deco-fleet; no torch.
#
#   docker build -t deco-edge .           docker buildx build --platform linux/arm64 -t deco-edge . on another machine
#   docker run --rm -v ./bundle:/bundle:ro --entrypoint deco-doctor deco-edge --bundle /bundle --state /state
#   docker run --rm --device /dev/video0 --group-add "$(stat -c %g /dev/video0)" -p 8080:8080 \
#       -v ./bundle:/bundle:ro -v deco-state:/state deco-edge \
#       --bundle /bundle --state /state --camera 0 --page 0.0.0.0:8080
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
ARG EXTRAS=device,page,mqtt
COPY pyproject.toml README.md LICENSE /src/
COPY runtime /src/runtime
COPY export /src/export
COPY models /src/models
COPY benchmarks /src/benchmarks
# pip and setuptools have done their work then, and take 25 MB.
RUN python3 -m venv /opt/deco \
    && /opt/deco/bin/pip install --no-cache-dir --no-compile "/src[$EXTRAS]" \
    && /opt/deco/bin/pip uninstall -y setuptools pip \
    && mkdir /state

# The same Debian's Python without a shell and a package manager: with those the image would be over 400 MB on amd64.
FROM gcr.io/distroless/python3-debian12:nonroot
COPY --from=build /opt/deco /opt/deco
COPY --from=build --chown=65532:65532 /state /state
ENV PATH=/opt/deco/bin:/usr/bin PYTHONDONTWRITEBYTECODE=1
VOLUME /state
ENTRYPOINT ["deco-run"]
