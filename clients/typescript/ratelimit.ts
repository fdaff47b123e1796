// Token buckets and sliding windows that share their keys with services in Go. docs/state.md explains all that is here.
//
//   const redis = new Redis("localhost", 6379);
//   const limiter = new TokenBucket(redis, { count: 10, period: 1_000_000, burst: 20 }, "api"); // times are microseconds
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

type Reply = number | string | null | Error | Reply[];
type Waiting = { resolve: (r: Reply) => void; reject: (e: Error) => void };

/** One connection, which never sends a command again: a reply that is lost may have taken permits. */
export class Redis {
  private socket;
  private buffer = "";
  private waiting: Waiting[] = [];

  constructor(host: string, port: number, timeout = 1000) {
    this.socket = connect(port, host);
    this.socket.setEncoding("latin1");
    this.socket.setTimeout(timeout, () => {
      if (this.waiting.length > 0) this.socket.destroy(new Error("no reply"));
    });
    const fail = (e?: Error) => this.waiting.splice(0).forEach((w) => w.reject(e ?? new Error("the connection ended")));
    this.socket.on("error", fail).on("close", () => fail());
    this.socket.on("data", (text: string) => {
      this.buffer += text;
      for (let r = parse(this.buffer, 0); r; r = parse(this.buffer, 0)) {
        this.buffer = this.buffer.slice(r.end);
        this.waiting.shift()?.resolve(r.value);
      }
    });
  }

  command(...words: (string | number)[]): Promise<Reply> {
    const parts = words.map((w) => Buffer.from(String(w)));
    const request = parts.flatMap((p) => [Buffer.from(`$${p.length}\r\n`), p, Buffer.from("\r\n")]);
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject });
      this.socket.write(Buffer.concat([Buffer.from(`*${words.length}\r\n`), ...request]));
    });
  }

  close() {
    this.socket.destroy();
  }
}

/** Reads one reply; undefined: it is not complete yet. */
function parse(text: string, at: number): { value: Reply; end: number } | undefined {
  const stop = text.indexOf("\r\n", at);
  if (stop < 0) return undefined;
  const kind = text[at], rest = text.slice(at + 1, stop);
  let end = stop + 2;
  if (kind === "$") {
    if (rest === "-1") return { value: null, end };
    const behind = end + Number(rest) + 2;
    return behind > text.length ? undefined : { value: text.slice(end, behind - 2), end: behind };
  }
  if (kind !== "*") return { value: kind === ":" ? Number(rest) : kind === "-" ? new Error(rest) : rest, end };
  const values: Reply[] = [];
  for (let i = 0; i < Number(rest); i++) {
    const next = parse(text, end);
    if (!next) return undefined;
    values.push(next.value);
    end = next.end;
  }
  return { value: values, end };
}

/** A published script: what stands in the file is what Redis runs, byte for byte. */
class Script {
  private source: string;
  private digest: string;

  constructor(name: string, folder = process.env.RATELIMIT_SCRIPTS ?? join(__dirname, "..", "scripts")) {
    this.source = readFileSync(join(folder, name + ".lua"), "utf8");
    this.digest = createHash("sha1").update(this.source).digest("hex");
  }

  async run(redis: Redis, key: string, args: (string | number)[]): Promise<number[]> {
    let reply = await redis.command("EVALSHA", this.digest, 1, key, ...args);
    if (reply instanceof Error && reply.message.startsWith("NOSCRIPT")) { // it has not run
      reply = await redis.command("EVAL", this.source, 1, key, ...args);
    }
    if (reply instanceof Error) throw reply; // no decision was made
    return reply as number[];
  }
}

/** The name in Redis, whose hash tag is that of the caller's key. */
export function keyName(prefix: string, name: string, algorithm: string, key: string): string {
  const head = `${prefix}:${name}:${algorithm}`, begin = key.indexOf("{");
  if (begin >= 0 && key.indexOf("}", begin) > begin + 1) return `${head}:${key}`;
  return key.startsWith("}") ? `${head};{;${key}}` : `${head}{${key}}`;
}

abstract class Limiter {
  private taking: Script;
  private looking: Script;

  constructor(private redis: Redis, private algorithm: string, script: string, private args: (string | number)[],
    private most: number, private name: string, private prefix: string) {
    this.taking = new Script(script + "_take");
    this.looking = new Script(script + "_look");
  }

  /** Takes n permits, or none. */
  take(key: string, n = 1): Promise<Result> {
    return this.ask(this.taking, key, n, n);
  }

  /** What a take of one permit would be answered. It takes nothing. */
  look(key: string): Promise<Result> {
    return this.ask(this.looking, key, 1, 0);
  }

  private async ask(script: Script, key: string, n: number, takes: number): Promise<Result> {
    if (key === "" || !Number.isInteger(n) || n < 1 || n > this.most) throw new RangeError(`${n} permits of "${key}"; there are never more than ${this.most}`);
    const words = await script.run(this.redis, keyName(this.prefix, this.name, this.algorithm, key), [n, ...this.args]);
    return this.explain(words, n, words[0] > 0 ? takes : 0);
  }

  protected abstract explain(words: number[], n: number, taken: number): Result;
}

const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b));
const above = (a: bigint, b: bigint): bigint => (a + b - 1n) / b; // rounded up, for a >= 0

/** At most burst + rate x t permits in any time t; the rate is count in each period, in steps of every if that is given. */
export class TokenBucket extends Limiter {
  private even: boolean;
  private permit: bigint; // units of a permit
  private flow: bigint; // units that a microsecond restores
  private every: bigint;
  private window: number;

  constructor(redis: Redis, private rule: { count: number; period: number; burst: number; every?: number }, name = "default", prefix = "ratelimit") {
    const common = gcd(rule.count, rule.period), permit = BigInt(rule.period / common), flow = BigInt(rule.count / common);
    const capacity = BigInt(rule.burst) * permit, even = !rule.every && capacity < 2n ** 48n; // a state of one number
    const numbers = even ? [capacity, permit, flow] : [BigInt(rule.burst), permit, flow, BigInt(rule.every || 1)];
    const args = [...numbers.map(String), "/" + numbers.slice(1).join("/")];
    super(redis, "tokenbucket", even ? "bucket" : "steppedbucket", args, rule.burst, name, prefix);
    this.even = even;
    this.permit = permit;
    this.flow = flow;
    this.every = BigInt(rule.every || 1);
    this.window = this.restores(capacity);
  }

  private restores(units: bigint): number {
    return units <= 0n ? 0 : Number(above(above(units, this.flow), this.every) * this.every);
  }

  protected explain(words: number[], n: number, taken: number): Result {
    const allowed = words[0] > 0, burst = BigInt(this.rule.burst);
    let missing = BigInt(words[1]), late = words[2], full = words[3], wait = words[2];
    if (!this.even) {
      missing = missing * this.permit + BigInt(words[2]);
      late = -words[3];
      full = words[4] > 0 ? -words[3] : 0;
      wait = words[4];
    }
    missing += BigInt(taken) * this.permit;
    const remaining = Math.max(Number(burst - above(missing, this.permit)), 0);
    let reset = missing > 0n ? this.restores(missing) + late : 0;
    let retry = allowed ? 0 : Math.max(this.restores(missing + (BigInt(n) - burst) * this.permit) + late, 1);
    if (full !== 0 && taken === 0) { // another rule wrote the state: both times are in the reply
      reset = Math.max(full, 0);
      retry = allowed ? 0 : Math.max(wait, 1);
    }
    return { allowed, limit: this.rule.burst, window: this.window, remaining, retry_after: retry, reset_after: Math.max(reset, retry) };
  }
}

/** At most limit permits in any interval of a window, which is counted in sub-windows. */
export class SlidingWindow extends Limiter {
  constructor(redis: Redis, private rule: { limit: number; window: number; sub_windows?: number }, name = "default", prefix = "ratelimit") {
    const slot = rule.window / (rule.sub_windows ?? 40);
    super(redis, "slidingwindow-list", "slidingwindow_list", [`${rule.window}/${slot}`, slot, rule.limit, rule.window], rule.limit, name, prefix);
  }

  protected explain(words: number[], n: number, taken: number): Result {
    const { limit, window } = this.rule, allowed = words[0] > 0, used = words[3] + taken;
    const reset = allowed && used === 0 ? 0 : Math.max(window + words[1], 0);
    return { allowed, limit, window, remaining: Math.max(limit - used, 0), retry_after: allowed ? 0 : words[2], reset_after: reset };
  }
}
