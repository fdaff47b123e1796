// Answers calls, one a line of JSON, for the tests: node drive.js HOST PORT.

import { createInterface } from "node:readline";
import { Redis, SlidingWindow, TokenBucket } from "./ratelimit";

const redis = new Redis(process.argv[2], Number(process.argv[3]));
(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const call = JSON.parse(line);
    const limiter = call.algorithm === "tokenbucket" ? new TokenBucket(redis, call.rule) : new SlidingWindow(redis, call.rule);
    console.log(JSON.stringify(call.n === 0 ? await limiter.look(call.key) : await limiter.take(call.key, call.n)));
  }
  redis.close();
})();
