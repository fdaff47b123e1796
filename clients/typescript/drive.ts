// Answers calls, one a line of JSON, for the tests: node drive.js HOST PORT MILLISECONDS.

import { createInterface } from "node:readline";
import { Redis, slidingWindow, tokenBucket } from "./ratelimit";

const redis = new Redis(process.argv[2], Number(process.argv[3]), Number(process.argv[4]));
(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const call = JSON.parse(line);
    try {
      const limiter = call.algorithm === "tokenbucket" ? tokenBucket(redis, call.rule) : slidingWindow(redis, call.rule);
      console.log(JSON.stringify(call.n === 0 ? await limiter.look(call.key) : await limiter.take(call.key, call.n)));
    } catch (e) {
      console.log(JSON.stringify({ error: String(e) }));
    }
  }
  redis.close();
})();
