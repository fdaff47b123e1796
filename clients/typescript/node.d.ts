// As much of Node's types as ratelimit.ts needs, where @types/node is not installed.

declare module "node:crypto" {
  export function createHash(name: string): { update(text: string): { digest(as: "hex"): string } };
}
declare module "node:fs" {
  export function readFileSync(path: string, as: "utf8"): string;
}
declare module "node:path" {
  export function join(...parts: string[]): string;
}
declare module "node:net" {
  interface Socket {
    setEncoding(as: string): void;
    destroy(): void;
    write(b: Uint8Array): void;
    on(event: "error", f: (e: Error) => void): Socket;
    on(event: "close", f: () => void): Socket;
    on(event: "data", f: (text: string) => void): Socket;
  }
  export function connect(port: number, host: string): Socket;
}
declare module "node:readline" {
  export function createInterface(of: { input: unknown }): AsyncIterable<string>;
}
declare const __dirname: string;
declare const process: { argv: string[]; env: Record<string, string | undefined>; stdin: unknown };
declare function setTimeout(f: () => void, ms: number): number;
declare function clearTimeout(timer?: number): void;
declare const console: { log(text: string): void };
declare const Buffer: { from(text: string): Uint8Array; concat(parts: Uint8Array[]): Uint8Array };
