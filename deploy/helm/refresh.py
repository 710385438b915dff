#!/usr/bin/env python3
"""Brings the chart's copies of other files up to date: `make chart`. A chart can hold no file from outside itself.

They are the sizing figures, the alerts, the dashboard, and the schema of `config` within values.schema.json. A test says
when one of them has fallen behind.
"""

import json
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1]
CHART = DEPLOY / "helm" / "kvtap"
COPIES = {
    "sizing.yaml": DEPLOY / "sizing.yaml",
    "prometheus-rule.yaml": DEPLOY / "kustomize/components/prometheus-rule/prometheus-rule.yaml",
    "dashboard.json": DEPLOY / "kustomize/components/grafana-dashboard/kvtap.json",
}


def closed(**properties):
    return {"type": "object", "additionalProperties": False, "properties": properties}


def switch(**more):
    return closed(enabled={"type": "boolean"}, **more)


TEXT, WORDS = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
OPEN, LIST = {"type": "object"}, {"type": "array", "items": {"type": "object"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}


def schema():
    """The schema of values.yaml, around that of kvtap.yaml."""
    config = json.loads((DEPLOY / "kvtap.schema.json").read_text())
    config = {key: value for key, value in config.items() if key != "$schema"}
    # The chart reads the ports of both servers.
    config = {**config, "type": "object", "required": ["grpc", "admin"]}
    values = closed(
        mode={"enum": ["fleet", "sidecar"]},
        image=closed(
            repository={**TEXT, "minLength": 1},
            tag=TEXT,
            digest={**TEXT, "pattern": "^(sha256:[0-9a-f]{64})?$"},
            pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
        ),
        imagePullSecrets=LIST,
        replicas={"type": "integer", "minimum": 1},
        config=config,
        resources=closed(requests=OPEN, limits=OPEN),
        snapshots=closed(size=TEXT),
        tls=closed(secret=TEXT, clientCertificates={"type": "boolean"}),
        nats=closed(secret=TEXT, servers=LIST, port=PORT),
        podLabels=WORDS,
        podAnnotations=WORDS,
        nodeSelector=WORDS,
        tolerations=LIST,
        affinity=OPEN,
        priorityClassName=TEXT,
        networkPolicy=switch(
            clients=LIST, monitoring=LIST, engines=LIST, enginePorts={"type": "array", "items": PORT}, engineApiPort=PORT
        ),
        podDisruptionBudget=switch(maxUnavailable={"type": ["integer", "string"]}),
        podMonitor=switch(interval=TEXT, labels=WORDS),
        prometheusRule=switch(labels=WORDS),
        dashboard=switch(labels=WORDS),
    )
    # What Helm adds by itself.
    values["properties"]["global"] = OPEN
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **values}


def wanted():
    """Each file of the chart that is made of others, with what it should hold."""
    files = {CHART / name: source.read_text() for name, source in COPIES.items()}
    files[CHART / "values.schema.json"] = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    return files


if __name__ == "__main__":
    for file, text in wanted().items():
        file.write_text(text)
