"""spinf-stream: articles from a Kafka topic in, calibrated answers to hundreds of questions out."""

__version__ = "0.1.0"
