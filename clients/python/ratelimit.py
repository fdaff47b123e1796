"""Token buckets and sliding windows that share their keys with services in Go. docs/state.md explains all that is here.

    redis = Redis("localhost", 6379)
    limiter = TokenBucket(redis, count=10, period=1_000_000, burst=20, name="api")  # times are microseconds
    result = limiter.take("user:42")
"""

import hashlib
import math
import pathlib
import socket
import threading
from dataclasses import dataclass


@dataclass
class Result:
    allowed: bool
    limit: int
    window: int
    remaining: int
    retry_after: int
    reset_after: int


class RedisError(Exception):
    """What Redis replied in place of an answer: no decision was made."""


class Redis:
    """One connection, which never sends a command again: a call whose reply is lost may have taken its permits. After a timeout
    or another failure it is closed, because a late reply would answer the next call: make another one."""

    def __init__(self, host: str, port: int, timeout: float = 1):
        self.socket = socket.create_connection((host, port), timeout)
        self.replies = self.socket.makefile("rb")
        self.lock = threading.Lock()
        self.failure = None

    def command(self, *words):
        request = b"*%d\r\n" % len(words)
        for word in words:
            text = str(word).encode()
            request += b"$%d\r\n%s\r\n" % (len(text), text)
        with self.lock:
            if self.failure:
                raise ConnectionError(f"the connection is closed: {self.failure}")
            try:
                self.socket.sendall(request)
                return self._reply()
            except BaseException as failure:  # an interrupt, too
                self.failure = repr(failure)
                self.replies.close()
                self.socket.close()
                raise

    def _reply(self):
        """A script replies with a list of whole numbers, or an error."""
        line = self.replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind not in b":-":
            raise ConnectionError(f"no reply of a script: {line!r}")
        return RedisError(rest) if kind == b"-" else int(rest)


class Script:
    """A published script: what stands in the file is what Redis runs, byte for byte."""

    def __init__(self, name: str):
        self.source = (pathlib.Path(__file__).parent.parent / "scripts" / f"{name}.lua").read_text()
        self.digest = hashlib.sha1(self.source.encode()).hexdigest()

    def run(self, redis: Redis, key: str, args: list):
        reply = redis.command("EVALSHA", self.digest, 1, key, *args)
        if isinstance(reply, RedisError) and str(reply).startswith("NOSCRIPT"):  # it has not run
            reply = redis.command("EVAL", self.source, 1, key, *args)
        if isinstance(reply, RedisError):
            raise reply
        return reply


def key_name(prefix: str, name: str, algorithm: str, key: str) -> str:
    """The name in Redis, whose hash tag is that of the caller's key."""
    begin, head = key.find("{"), f"{prefix}:{name}:{algorithm}"
    if begin >= 0 and key.find("}", begin) > begin + 1:
        return f"{head}:{key}"
    return f"{head};{{;{key}}}" if key.startswith("}") else f"{head}{{{key}}}"


PERMITS, MICROS = 10**12, 2**51  # the most that is exact


def check(most: int, **numbers):
    """Refuses what scripts take as it is: of a window of 0 they allow everything, and of 1.5 permits they take as many."""
    for name, n in numbers.items():
        if type(n) is not int or not 1 <= n <= most:
            raise ValueError(f"{name} is {n!r}; give a whole number from 1 to {most}")


class Limiter:
    def __init__(self, redis: Redis, algorithm: str, script: str, args: list, most: int, name: str, prefix: str):
        self.redis, self.algorithm, self.args, self.most, self.name, self.prefix = redis, algorithm, args, most, name, prefix
        self.taking, self.looking = Script(script + "_take"), Script(script + "_look")

    def take(self, key: str, n: int = 1) -> Result:
        """Takes n permits, or none."""
        return self._ask(self.taking, key, n, n)

    def look(self, key: str) -> Result:
        """What a take of one permit would be answered. It takes nothing."""
        return self._ask(self.looking, key, 1, 0)

    def _ask(self, script: Script, key: str, n: int, takes: int) -> Result:
        if not key:
            raise ValueError("the key is empty")
        check(self.most, n=n)
        words = script.run(self.redis, key_name(self.prefix, self.name, self.algorithm, key), [n, *self.args])
        return self.explain(words, n, takes if words[0] > 0 else 0)


class TokenBucket(Limiter):
    """At most burst + rate x t permits in any time t; the rate is count in each period, in steps of every if that is given, aligned to an offset if that is."""

    def __init__(self, redis, count: int, period: int, burst: int, every: int = 0, offset: int | None = None, name="default", prefix="ratelimit"):
        check(PERMITS, count=count, burst=burst)
        check(MICROS, period=period, every=every or 1)
        common = math.gcd(count, period)
        self.permit, self.flow, self.burst = period // common, count // common, burst  # units of a permit, of a microsecond
        self.even = not every and burst * self.permit < 2**48  # a state of one number
        self.every = every or 1
        self.window = self._restores(burst * self.permit)
        numbers = [burst * self.permit, self.permit, self.flow] if self.even else [burst, self.permit, self.flow, self.every]
        args = [*numbers, *([] if self.even else ["first" if offset is None else offset % every]), "/" + "/".join(map(str, numbers[1:]))]
        super().__init__(redis, "tokenbucket", "bucket" if self.even else "steppedbucket", args, burst, name, prefix)

    def _restores(self, units: int) -> int:
        micros = -(-units // self.flow)
        return -(-micros // self.every) * self.every

    def explain(self, words: list, n: int, taken: int) -> Result:
        allowed, missing, late, full, wait = words[0] > 0, words[1], words[2], words[3], words[2]
        if not self.even:
            missing, late, full, wait = words[1] * self.permit + words[2], -words[3], -words[3] if words[4] else 0, words[4]
        missing += taken * self.permit
        remaining = max(self.burst + -missing // self.permit, 0)
        reset = self._restores(missing) + late if missing else 0
        retry = 0 if allowed else max(self._restores(max(missing + (n - self.burst) * self.permit, 0)) + late, 1)
        if full and not taken:  # another rule wrote the state: both times are in the reply
            reset, retry = max(full, 0), 0 if allowed else max(wait, 1)
        return Result(allowed, self.burst, self.window, remaining, retry, max(reset, retry))


class SlidingWindow(Limiter):
    """At most limit permits in any interval of a window, which is counted in sub-windows."""

    def __init__(self, redis, limit: int, window: int, sub_windows: int = 40, name="default", prefix="ratelimit"):
        check(PERMITS, limit=limit)
        check(MICROS, window=window, sub_windows=sub_windows)
        if window % sub_windows:
            raise ValueError(f"a window of {window} µs has no {sub_windows} sub-windows of whole microseconds")
        self.limit, self.window, slot = limit, window, window // sub_windows
        args = [f"{window}/{slot}", slot, limit, window]
        super().__init__(redis, "slidingwindow-list", "slidingwindow_list", args, limit, name, prefix)

    def explain(self, words: list, n: int, taken: int) -> Result:
        allowed, used = words[0] > 0, words[3] + taken
        reset = 0 if allowed and used == 0 else max(self.window + words[1], 0)
        return Result(allowed, self.limit, self.window, max(self.limit - used, 0), 0 if allowed else words[2], reset)
