"""Answers calls, one a line of JSON, for the tests: python3 drive.py HOST PORT."""

import dataclasses
import json
import sys

import ratelimit

redis = ratelimit.Redis(sys.argv[1], int(sys.argv[2]))
made = {"tokenbucket": ratelimit.TokenBucket, "slidingwindow-list": ratelimit.SlidingWindow}
for line in sys.stdin:
    call = json.loads(line)
    limiter = made[call["algorithm"]](redis, **call["rule"])
    result = limiter.look(call["key"]) if call["n"] == 0 else limiter.take(call["key"], call["n"])
    print(json.dumps(dataclasses.asdict(result)), flush=True)
