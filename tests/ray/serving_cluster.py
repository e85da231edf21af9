"""A Ray cluster of one process tree with the chat service on it, for as long as standard input stays open.

    python serving_cluster.py '{"model": "char", "replicas": 2, "port": 8100, ...}'    (arguments of `chat_app`)

Prints one line of JSON once the service answers. Its temporary directory and its authentication are the caller's.
"""

import json
import os
import sys

import ray

from paceline.serving import chat_app

service_arguments = json.loads(sys.argv[1])
ray.init(
    address="local",
    num_cpus=4,
    include_dashboard=False,
    log_to_driver=False,
    namespace="paceline",
    object_store_memory=100 << 20,
    _temp_dir=os.environ["RAY_TMPDIR"],
)
try:
    service = chat_app(**service_arguments)
    print(json.dumps({"url": service.url, "journal": service.journal}), flush=True)
    sys.stdin.read()
finally:
    ray.shutdown()
