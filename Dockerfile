# The same Makefile, in a box: docker build -t linformer-kit . && docker run linformer-kit
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /linformer-kit
COPY . .
RUN make test
CMD ["make", "run"]
