// Token buckets and sliding windows that share their keys with services in Go. docs/state.md explains all that is here.
//
//   const redis = new Redis("localhost", 6379);
//   const limiter = tokenBucket(redis, { count: 10, period: 1_000_000, burst: 20 }, "api"); // times are microseconds
//   const result = await limiter.take("user:42");

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";

export interface Result {
  allowed: boolean;
  limit: number;
  window: number;
  remaining: number;
  retry_after: number;
  reset_after: number;
}

type Timer = ReturnType<typeof setTimeout>;

/** What Redis replied in place of an answer: no decision was made. */
export class RedisError extends Error {}

/**
 * One connection, which never sends a command again: a call whose reply is lost may have taken its permits. After a timeout
 * (milliseconds) or another failure it is closed, because a late reply would answer the next call: make another one.
 */
export class Redis {
  private socket;
  private received = "";
  private waiting: { resolve(words: number[]): void; reject(e: Error): void; timer: Timer }[] = [];
  private failure?: Error;

  constructor(host: string, port: number, private timeout = 1000) {
    this.socket = connect(port, host);
    this.socket.setEncoding("latin1");
    this.socket.on("data", (text: string) => this.read(text));
    this.socket.on("error", (e) => this.close(e));
    this.socket.on("close", () => this.close(new Error("the connection ended")));
  }

  command(...words: (string | number)[]): Promise<number[]> {
    const parts = words.map((w) => Buffer.from(String(w)));
    const request = parts.flatMap((p) => [Buffer.from(`$${p.length}\r\n`), p, Buffer.from("\r\n")]);
    return new Promise((resolve, reject) => {
      if (this.failure) throw new Error(`the connection is closed: ${this.failure.message}`);
      const timer = setTimeout(() => this.close(new Error(`no reply in time, which is ${this.timeout} ms`)), this.timeout);
      this.waiting.push({ resolve, reject, timer });
      this.socket.write(Buffer.concat([Buffer.from(`*${words.length}\r\n`), ...request]));
    });
  }

  close(cause = new Error("it was closed here")) {
    const failure = (this.failure = this.failure ?? cause);
    this.socket.destroy();
    for (const call of this.waiting.splice(0)) {
      clearTimeout(call.timer);
      call.reject(failure);
    }
  }

  /** A script replies with a list of whole numbers, or an error. */
  private read(text: string) {
    this.received += text;
    for (;;) {
      const [head, ...lines] = this.received.split("\r\n"); // the last one is not complete
      const count = head[0] === "*" ? Number(head.slice(1)) : 0;
      if (lines.length <= count) return;
      if (head[0] !== "*" && head[0] !== "-") return this.close(new Error(`no reply of a script: ${head}`));
      this.received = lines.slice(count).join("\r\n");
      const call = this.waiting.shift();
      clearTimeout(call?.timer);
      if (head[0] === "-") call?.reject(new RedisError(head.slice(1)));
      else call?.resolve(lines.slice(0, count).map((line) => Number(line.slice(1))));
    }
  }
}

/** A published script: what stands in the file is what Redis runs, byte for byte. */
function script(name: string) {
  const source = readFileSync(join(process.env.RATELIMIT_SCRIPTS ?? join(__dirname, "..", "scripts"), name + ".lua"), "utf8");
  const digest = createHash("sha1").update(source).digest("hex");
  return (redis: Redis, ...rest: (string | number)[]): Promise<number[]> =>
    redis.command("EVALSHA", digest, 1, ...rest).catch((e) => {
      if (!(e instanceof RedisError && e.message.startsWith("NOSCRIPT"))) throw e;
      return redis.command("EVAL", source, 1, ...rest); // it has not run
    });
}

/** The name in Redis, whose hash tag is that of the caller's key. */
export function keyName(prefix: string, name: string, algorithm: string, key: string): string {
  if (key === "") throw new RangeError("the key is empty");
  const head = `${prefix}:${name}:${algorithm}`, begin = key.indexOf("{");
  if (begin >= 0 && key.indexOf("}", begin) > begin + 1) return `${head}:${key}`;
  return key.startsWith("}") ? `${head};{;${key}}` : `${head}{${key}}`;
}

const PERMITS = 1e12, MICROS = 2 ** 51; // the most that is exact

/** Refuses what scripts take as it is: of a window of 0 they allow everything, and of 1.5 permits they take as many. */
function check(most: number, numbers: Record<string, number>) {
  for (const [name, n] of Object.entries(numbers)) {
    if (!Number.isInteger(n) || n < 1 || n > most) throw new RangeError(`${name} is ${n}; give a whole number from 1 to ${most}`);
  }
}

export class Limiter {
  private taking;
  private looking;

  constructor(private redis: Redis, private nameOf: (key: string) => string, name: string, private args: string[],
    private most: number, private explain: (words: number[], n: number, taken: number) => Result) {
    this.taking = script(name + "_take");
    this.looking = script(name + "_look");
  }

  /** Takes n permits, or none. */
  async take(key: string, n = 1): Promise<Result> {
    check(this.most, { n });
    const words = await this.taking(this.redis, this.nameOf(key), n, ...this.args);
    return this.explain(words, n, words[0] > 0 ? n : 0);
  }

  /** What a take of one permit would be answered. It takes nothing. */
  async look(key: string): Promise<Result> {
    return this.explain(await this.looking(this.redis, this.nameOf(key), 1, ...this.args), 1, 0);
  }
}

const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b));
const up = (a: bigint, b: bigint): bigint => (a > 0n ? (a + b - 1n) / b : 0n); // rounded up, at least 0
const max = (a: bigint, b: bigint): bigint => (a > b ? a : b);

/** At most burst + rate x t permits in any time t; the rate is count in each period, in steps of every if that is given, aligned to an offset (at least 0) if that is. */
export function tokenBucket(redis: Redis, rule: { count: number; period: number; burst: number; every?: number; offset?: number },
  name = "default", prefix = "ratelimit"): Limiter {
  check(PERMITS, { count: rule.count, burst: rule.burst });
  check(MICROS, { period: rule.period, every: rule.every || 1 });
  const common = gcd(rule.count, rule.period), burst = BigInt(rule.burst), every = BigInt(rule.every || 1);
  const permit = BigInt(rule.period / common), flow = BigInt(rule.count / common); // units of a permit, of a microsecond
  const even = !rule.every && burst * permit < 2n ** 48n; // a state of one number
  const restores = (units: bigint) => up(up(units, flow), every) * every;
  const numbers = even ? [burst * permit, permit, flow] : [burst, permit, flow, every];
  const args = [...numbers.map(String), ...(even ? [] : [rule.offset === undefined ? "first" : String(rule.offset % rule.every!)]), "/" + numbers.slice(1).join("/")];
  const explain = (words: number[], n: number, taken: number): Result => {
    const allowed = words[0] > 0, w = words.map(BigInt);
    let [, missing, late, full] = w, wait = late;
    if (!even) [missing, late, full, wait] = [w[1] * permit + w[2], -w[3], w[4] > 0n ? -w[3] : 0n, w[4]];
    missing += BigInt(taken) * permit;
    let reset = missing > 0n ? restores(missing) + late : 0n;
    let retry = max(restores(missing + (BigInt(n) - burst) * permit) + late, 1n);
    if (full !== 0n && taken === 0) [reset, retry] = [max(full, 0n), max(wait, 1n)]; // of another rule's state the reply has both
    if (allowed) retry = 0n;
    return {
      allowed, limit: rule.burst, window: Number(restores(burst * permit)),
      remaining: Number(max(burst - up(missing, permit), 0n)), retry_after: Number(retry), reset_after: Number(max(reset, retry)),
    };
  };
  const nameOf = (key: string) => keyName(prefix, name, "tokenbucket", key);
  return new Limiter(redis, nameOf, even ? "bucket" : "steppedbucket", args, rule.burst, explain);
}

/** At most limit permits in any interval of a window, which is counted in sub-windows. */
export function slidingWindow(redis: Redis, rule: { limit: number; window: number; sub_windows?: number },
  name = "default", prefix = "ratelimit"): Limiter {
  const { limit, window, sub_windows = 40 } = rule, slot = window / sub_windows;
  check(PERMITS, { limit });
  check(MICROS, { window, sub_windows });
  if (!Number.isInteger(slot)) throw new RangeError(`a window of ${window} µs has no ${sub_windows} sub-windows of whole microseconds`);
  const explain = (words: number[], _: number, taken: number): Result => {
    const allowed = words[0] > 0, used = words[3] + taken;
    const reset = allowed && used === 0 ? 0 : Math.max(window + words[1], 0);
    const remaining = Math.max(limit - used, 0), retry = allowed ? 0 : words[2];
    return { allowed, limit, window, remaining, retry_after: retry, reset_after: reset };
  };
  const nameOf = (key: string) => keyName(prefix, name, "slidingwindow-list", key);
  const args = [`${window}/${slot}`, ...[slot, limit, window].map(String)];
  return new Limiter(redis, nameOf, "slidingwindow_list", args, limit, explain);
}
