"""The log port on Kafka or Redpanda: `log.KafkaLog` over aiokafka's connections, protocol structures and record format.

aiokafka's own producer and consumer are not used. Its producer retries a batch until a time-out and then says only that
it failed, where the port must tell Failed from Unknown; its consumer resets nothing by itself but doesn't say under which
topic id or leader epoch it read, and stands still unseen after some broker restarts. What is used is what both are made
of: `AIOKafkaConnection` (versions, SASL, TLS, one answer a request) and the C record batches.

    log.py        the port: submit, gauges      settings.py   what is configured
    producer.py   appends                       checks.py     start-up checks, each with its refusal
    consumer.py   fetches that wait             topics.py     topics made as the checks want them
    reader.py     fetches that don't            wire.py       requests aiokafka has no words for
    ends.py       where partitions end          cluster.py    brokers, leaders, connections
    doubts.py     whose word waits for another's
"""
