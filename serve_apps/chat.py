"""A chat service with OpenAI's API whose conversations outlive the GPU under them.

    python serve_apps/chat.py --model smollm2 --replicas 2 --port 8100
    ray job submit --working-dir . -- python serve_apps/chat.py --model char --replicas 2

It deploys, waits until the service answers, and ends; the service stays. `--down` takes it away again.
"""

import argparse

from paceline import serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="smollm2 or char")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--gpus-per-replica", type=float, default=None, help="default: 1 where the cluster has GPUs")
    parser.add_argument("--token-period-ms", type=float, default=0.0, help="time between tokens of the model `char`")
    parser.add_argument("--down", action="store_true", help="take the service down")
    args = parser.parse_args()
    if args.down:
        serving.undeploy()
        print("the chat service is down; its journal stays")
        return
    service = serving.chat_app(
        model=args.model,
        replicas=args.replicas,
        port=args.port,
        gpus_per_replica=args.gpus_per_replica,
        token_period_s=args.token_period_ms / 1000,
    )
    print(f"{service.model} x {service.replicas} answers at {service.url}/v1 (OpenAI's API)")


if __name__ == "__main__":
    main()
