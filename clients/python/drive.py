"""Answers calls, one a line of JSON, for the tests: python3 drive.py HOST PORT MILLISECONDS."""

import dataclasses
import json
import sys

import ratelimit

redis = ratelimit.Redis(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) / 1000)
made = {"tokenbucket": ratelimit.TokenBucket, "slidingwindow-list": ratelimit.SlidingWindow}
for line in sys.stdin:
    call = json.loads(line)
    try:
        limiter = made[call["algorithm"]](redis, **call["rule"])
        result = dataclasses.asdict(limiter.look(call["key"]) if call["n"] == 0 else limiter.take(call["key"], call["n"]))
    except Exception as e:
        result = {"error": f"{type(e).__name__}: {e}"}
    print(json.dumps(result), flush=True)
