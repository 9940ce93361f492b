# `linformer serve`: docker build --target serve -t linformer-serve . (compose.yaml runs it)
FROM python:3.11-slim AS serve
WORKDIR /linformer-kit
COPY . .
RUN pip install --no-cache-dir -c constraints.txt '.[serve]'
USER nobody
ENTRYPOINT ["linformer"]

# The same Makefile, in a box: docker build -t linformer-kit . && docker run linformer-kit
FROM python:3.11-slim AS all
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /linformer-kit
COPY . .
RUN make test
CMD ["make", "run"]
